"""Time that passes while this process runs, for limits of what the process itself must do or see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class AwakeClock:
    """Seconds for which this process has run since the clock was made. Thread-safe.

    A process may stand still for minutes, by SIGSTOP or with its whole machine, and the system's clock goes on. A limit
    by that clock would have run out afterwards, without anything having had its time. So the clock is to be read every
    now and then, and a longer gap than `longest_s` between two readings is taken for a pause: it counts as that.
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
        """A clock for one wait of `limit_s`. A pause counts as an eighth of it at most, if the clock is read often."""
        return cls(limit_s / 8)

    def now(self) -> float:
        """The seconds so far."""
        with self._lock:
            now = self._read()
            self._awake_s += min(now - self._last, self._longest_s)
            self._last = now
            return self._awake_s
