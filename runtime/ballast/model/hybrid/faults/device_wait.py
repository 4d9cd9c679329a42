"""Waits for work on the device with a limit. Only progress of the device counts as a sign of life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast.awake_clock import AwakeClock
from ballast.errors import EngineDeadError

LIMIT_S = 25.0
"""Longest time between two events of a step, in seconds; with a longer one, the server's heartbeat would go stale. Time
during which the whole process is paused does not count."""

_POLL_S = 0.0005


class Event(Protocol):
    """The part of torch.cuda.Event that is used."""

    def query(self) -> bool:
        """Whether all work queued before the event is done. Raises the error of a failed device."""


@dataclass(frozen=True, slots=True)
class Events:
    """Implements `Event`: has happened when all of `each`, of different devices, have happened."""

    each: Sequence[Event]

    def query(self) -> bool:
        """See `Event`."""
        return all(event.query() for event in self.each)


def wait_for(events: Iterable[Event], progressed: Callable[[], None], limit_s: float | None = None) -> None:
    """Wait until all events have happened, and call `progressed` after each. The events were recorded in this order on
    one stream. Raises EngineDeadError when no event happens for `limit_s` (default LIMIT_S), and the errors of
    `query`."""
    limit_s = LIMIT_S if limit_s is None else limit_s
    for number, event in enumerate(events, start=1):
        clock = AwakeClock.for_limit(limit_s)
        while not event.query():
            if clock.now() > limit_s:
                raise EngineDeadError(f"the device has not reached event {number} of the step for {limit_s:g} s")
            time.sleep(_POLL_S)
        progressed()
