"""Words of host memory that the device raises and waits for, in the order of its queue."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError


class Signals(Protocol):
    """Raises and awaits words, which are zero or one. Where the device has a queue, calls return at once, and what they
    ask for happens in the queue's order."""

    def raise_word(self, words: torch.Tensor, index: int) -> None:
        """Set a word to one."""

    def await_word(self, words: torch.Tensor, index: int) -> None:
        """Wait until a word is one, and set it to zero."""

    def check(self) -> None:
        """Raise the error that the device has failed with, if it has."""


class HostSignals:
    """Signals for a model whose device is the CPU: the calling thread itself raises and waits."""

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

    def check(self) -> None:
        pass  # errors are raised by the operations themselves


def _view(words: torch.Tensor) -> NDArray[np.int32]:
    view: NDArray[np.int32] = words.numpy()
    return view
