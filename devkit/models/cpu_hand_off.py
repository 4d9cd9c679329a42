"""The hand-off to the CPU's experts from a model whose device is the CPU too."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError
from ballast.model.hybrid.handoff import host_experts
from ballast.model.hybrid.handoff.hand_off import HandOff
from ballast.model.hybrid.handoff.transport import Fetch, Mailbox, Send


def cpu_hand_off() -> HandOff:
    """Waits as long as `HostExperts` waits for a device."""
    return HandOff(HostSignals(host_experts.LIMIT_S), *by_copies(), pins=False)


def by_copies() -> tuple[Send, Fetch]:
    """Transport by copies."""

    def send(mailbox: Mailbox, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        for place, values in ((mailbox.inputs, x), (mailbox.ids, ids), (mailbox.weights, weights)):
            place[: len(x)].copy_(values)

    def fetch(mailbox: Mailbox, num_tokens: int, device: torch.device) -> torch.Tensor:
        return mailbox.results[:num_tokens].clone()

    return send, fetch


class HostSignals:
    """Implements `Signals`: the calling thread itself raises and waits."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def raise_word(self, words: torch.Tensor, index: int) -> None:
        _view(words)[index] = 1

    def await_word(self, words: torch.Tensor, index: int) -> None:
        view = _view(words)
        clock = AwakeClock.for_limit(self._limit_s)
        while view[index] == 0:
            if clock.now() > self._limit_s:
                raise EngineDeadError(f"the experts of routed layer {index} were not done within {self._limit_s} s")
            time.sleep(0)
        view[index] = 0

    def check(self, device: torch.device) -> None:
        pass  # errors are raised by the operations themselves


def _view(words: torch.Tensor) -> NDArray[np.int32]:
    view: NDArray[np.int32] = words.numpy()
    return view
