"""A step of the prefill lane, queued on the device piece by piece, so that decode steps can be queued in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError
from ballast.model.hybrid.faults import device_wait
from ballast.model.hybrid.faults.device_wait import Event
from ballast.model.hybrid.steps.pieces import Pieces

MAX_AHEAD = 8
"""Maximum number of pieces that are queued and not yet computed. It is large enough that the device never waits for the
host, and small enough that the device's queue accepts a launch without blocking."""


class PrefillPass:
    """One step, from its first piece to its logits."""

    def __init__(self, pieces: Pieces[torch.Tensor], record: Callable[[], Event]) -> None:
        """`pieces` queues one piece per advance, and returns the logits on the device; `record` returns an event after
        the work queued so far."""
        self._pieces = pieces
        self._record = record
        self._queued: deque[Event] = deque()
        self._logits: torch.Tensor | None = None
        self.is_cancelled = False
        """Whether no more pieces are queued. Pieces that are already queued still use the step's memory."""
        self._since_event = AwakeClock.for_limit(device_wait.LIMIT_S)

    def advance(self, progressed: Callable[[], None]) -> bool:
        """Queue a piece if the device will soon need one; returns whether all pieces are computed. Calls `progressed`
        for each computed piece. Never waits. Raises EngineDeadError when the device computes no piece for
        `device_wait.LIMIT_S` seconds, and the error of a failed device."""
        while self._queued and self._queued[0].query():
            self._queued.popleft()
            self._since_event = AwakeClock.for_limit(device_wait.LIMIT_S)
            progressed()
        if self._queued and self._since_event.now() > device_wait.LIMIT_S:
            raise EngineDeadError(f"the device has not completed a part of a prompt for {device_wait.LIMIT_S:g} s")
        if not self.is_ahead:
            try:
                next(self._pieces)
            except StopIteration as end:
                self._logits = end.value
            self._queued.append(self._record())
        return (self._logits is not None or self.is_cancelled) and not self._queued

    @property
    def is_ahead(self) -> bool:
        """Whether enough pieces are queued for now."""
        return self.is_cancelled or self._logits is not None or len(self._queued) >= MAX_AHEAD

    @property
    def logits(self) -> torch.Tensor:
        """The logits on the device, valid after all pieces are computed."""
        assert self._logits is not None
        return self._logits
