"""How long a service has made no progress towards its spec. Pure, but for the state of the clock itself."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class ProgressClock:
    """Measures the time without progress. Progress is a new target, or more ready pods of it than ever before.

    The time in which a model is pulled without trouble does not count.
    """

    target: Hashable = None
    best: int = 0
    """Most pods of the target that were ready together since it was last complete."""
    since: float = 0.0
    """The loop time of the last progress, later by the time that did not count."""
    last: float = 0.0
    """The loop time of the last call."""
    failed: bool = False
    """Whether the target was reported as failed since the last progress."""

    def idle_s(self, target: Hashable, num_ready: int, wanted: int, now: float, *, is_pulling: bool = False) -> float:
        """Seconds since the last progress. While all `wanted` pods are ready, that is now."""
        passed, self.last = now - self.last, now
        if target != self.target:
            known = self.target is not None
            self.target, self.best, self.since = target, num_ready, now
            self.failed = self.failed and not known
        elif num_ready > self.best or num_ready >= wanted:
            self.best, self.since, self.failed = num_ready, now, False
        elif is_pulling:
            self.since += passed
        return now - self.since
