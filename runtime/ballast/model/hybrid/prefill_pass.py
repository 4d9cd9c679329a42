"""A step of the prefill lane, queued on the device piece by piece, so that decode steps get their turn on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError
from ballast.model.hybrid import device_wait
from ballast.model.hybrid.device_wait import Event
from ballast.model.hybrid.pieces import Pieces

MOST_AHEAD = 8
"""Pieces that are queued and not computed yet: enough that the device never waits for the host, and few enough that its
queue takes a launch at once."""


class PrefillPass:
    """One step between its first piece and its logits."""

    def __init__(self, pieces: Pieces[torch.Tensor], record: Callable[[], Event]) -> None:
        """`pieces` queues one each time that it is advanced, and returns the logits on the device; `record` returns an
        event after what is queued so far."""
        self._pieces = pieces
        self._record = record
        self._queued: deque[Event] = deque()
        self._logits: torch.Tensor | None = None
        self.is_cancelled = False
        """Whether no more pieces are queued. Those that were still compute with what the step holds."""
        self._since_event = AwakeClock.for_limit(device_wait.LIMIT_S)

    def advance(self, progressed: Callable[[], None]) -> bool:
        """Queue a piece, if the device will soon need one; whether all are computed. `progressed` is called for each
        piece that has been. Never waits. Raises EngineDeadError when the device computes none for
        `device_wait.LIMIT_S`, and what it has failed with."""
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
        """Whether no piece is to be queued now."""
        return self.is_cancelled or self._logits is not None or len(self._queued) >= MOST_AHEAD

    @property
    def logits(self) -> torch.Tensor:
        """On the device, once all pieces are computed."""
        assert self._logits is not None
        return self._logits
