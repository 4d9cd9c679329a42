"""Measures time while this process runs, for time limits that a pause of the process must not consume."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class AwakeClock:
    """Seconds for which this process has run since the clock was made. Thread-safe.

    A process may be paused for minutes, by SIGSTOP or with its whole machine, while the system's clock continues. A
    limit by that clock would expire during the pause. So the clock must be read regularly: a gap of more than
    `longest_s` between two readings counts as a pause of that length.
    """

    def __init__(self, longest_s: float, read: Callable[[], float] = time.monotonic) -> None:
        """`read` is the system's clock; tests pass another."""
        self._longest_s = longest_s
        self._read = read
        self._lock = threading.Lock()
        self._awake_s = 0.0
        self._last = read()

    @classmethod
    def for_limit(cls, limit_s: float) -> AwakeClock:
        """A clock for one wait of `limit_s`. A pause counts as at most an eighth of it, if the clock is read often."""
        return cls(limit_s / 8)

    def now(self) -> float:
        """The seconds so far."""
        with self._lock:
            now = self._read()
            self._awake_s += min(now - self._last, self._longest_s)
            self._last = now
            return self._awake_s
