"""Routed experts that the CPU computes from host memory while a device continues.

A device sends a layer's activations, and waits for the results, through words of host memory (csrc/moe/handoff.h). So
a whole step can be queued at a time, and the calling thread waits for no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from ballast._core import kernels
from ballast._core.handoff import ExpertWorker
from ballast.model.hybrid.handoff.hand_off import HandOff
from ballast.model.hybrid.handoff.idle import IdleExperts
from ballast.model.hybrid.handoff.transport import Mailbox
from ballast.model.spec import ModelSpec
from ballast.model.transformer import ALIVE_EVERY_S

LIMIT_S = 25.0
"""Longest wait for the device in one layer, in seconds; with a longer one, the server's heartbeat would go stale.
Experts get 0.1 s more per token of the step (csrc/moe/handoff.h)."""


class HostExperts:
    """All routed layers of a model, which may be computed by several devices. They share the buffers of activations and
    results: a layer's activations are sent after the results of the layer before were received."""

    def __init__(
        self,
        spec: ModelSpec,
        layers: Sequence[kernels.Experts],
        pool: kernels.ThreadPool,
        max_tokens: int,
        hand_off: HandOff,
        *,
        pin_thread: bool = False,
    ) -> None:
        """Steps have at most `max_tokens` tokens. With `pin_thread`, the worker becomes the pool's first thread and is
        pinned."""
        self._mailbox = Mailbox(
            torch.empty((max_tokens, spec.hidden), pin_memory=hand_off.pins),
            torch.empty((max_tokens, spec.routing.num_experts_used), dtype=torch.int32, pin_memory=hand_off.pins),
            torch.empty((max_tokens, spec.routing.num_experts_used), pin_memory=hand_off.pins),
            torch.empty((max_tokens, spec.hidden), pin_memory=hand_off.pins),
        )
        self._send, self._fetch = hand_off.send, hand_off.fetch
        self._submitted = torch.zeros(len(layers), dtype=torch.int32, pin_memory=hand_off.pins)
        self._done = torch.zeros(len(layers), dtype=torch.int32, pin_memory=hand_off.pins)
        self._signals = hand_off.signals
        self._num_tokens = 0
        self._senders: set[torch.device] = set()
        """The devices that have submitted a layer."""
        self._sender = self._mailbox.inputs.device
        """The device that has submitted the last layer."""
        self._worker = ExpertWorker(
            pool,
            list(layers),
            inputs=self._mailbox.inputs.numpy(),
            ids=self._mailbox.ids.numpy(),
            weights=self._mailbox.weights.numpy(),
            results=self._mailbox.results.numpy(),
            submitted=self._submitted.numpy().view(np.uint32),
            done=self._done.numpy().view(np.uint32),
            limit_s=LIMIT_S,
            adopt_thread=pin_thread,
        )

    def idle(self) -> IdleExperts:
        """Experts that compute nothing, for warm-up steps."""
        return IdleExperts(self._mailbox, self._send, self._fetch)

    @property
    def bytes_read(self) -> int:
        """Bytes of experts' weights read so far."""
        return self._worker.bytes_read

    def begin(self, num_tokens: int) -> None:
        """Start a step of `num_tokens` tokens that submits every layer in order."""
        self._worker.begin(num_tokens)

    def submit(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """Send x float32 [T, D] of the `layer`th routed layer with the selected experts, ids int32 and weights float32
        [T, k]; an id of -1 is not computed."""
        self._num_tokens = len(x)
        self._sender = x.device
        self._senders.add(x.device)
        self._send(self._mailbox, x, ids, weights)
        self._signals.raise_word(self._submitted, layer)

    def pieces(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Iterator[None]:
        """As `submit`, in one piece."""
        self.submit(layer, x, ids, weights)
        yield

    def result(self, layer: int) -> torch.Tensor:
        """The sum over the submitted experts, float32 [T, D] on the device that submitted them."""
        self._signals.await_word(self._done, layer)
        return self._fetch(self._mailbox, self._num_tokens, self._sender)

    def finish(self, alive: Callable[[], None]) -> None:
        """Wait until every layer is computed, calling `alive` now and then. The step fails if the device takes longer
        than the limit to submit a layer, or the CPU to compute it. Raises the error of either side."""
        while not self.is_done(ALIVE_EVERY_S):
            alive()

    def is_done(self, timeout_s: float) -> bool:
        """Whether every layer is computed; waits up to `timeout_s`. Raises as `finish` does."""
        is_done = self._worker.finish(timeout_s)
        if not is_done:
            for device in self._senders:
                self._signals.check(device)
        return is_done
