"""Waits for work on the device with a limit; only the device's progress counts as a sign of life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError

LIMIT_S = 25.0
"""Longest time between two events of a step, in seconds; a server's heartbeat would go stale later. Pauses of the whole
process do not count."""

_POLL_S = 0.0005


class Event(Protocol):
    """The used part of torch.cuda.Event."""

    def query(self) -> bool:
        """Whether all work queued before the event is done. Raises what the device has failed with."""


def wait_for(events: Iterable[Event], progressed: Callable[[], None], limit_s: float | None = None) -> None:
    """Wait until all events have happened, which were recorded in this order on one stream, and call `progressed` after
    each. Raises EngineDeadError when none happens for `limit_s`, by default LIMIT_S, and what `query` raises."""
    limit_s = LIMIT_S if limit_s is None else limit_s
    for number, event in enumerate(events, start=1):
        clock = AwakeClock.for_limit(limit_s)
        while not event.query():
            if clock.now() > limit_s:
                raise EngineDeadError(f"the device has not reached event {number} of the step for {limit_s:g} s")
            time.sleep(_POLL_S)
        progressed()
