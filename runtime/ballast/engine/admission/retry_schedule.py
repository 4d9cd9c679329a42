"""Decides when a refused client should come back. Pure: whoever asks brings the time.

A client is refused because the queue is full, and a place in it is free as soon as one request of the batch has ended.
So the wait is counted in requests that end, not in the length of the queue, and each refusal takes the next place:
clients that came together come back one after another, as fast as they can be taken.

The estimate leans to short. Who comes too early is refused once more, which is cheap; who comes too late may find an
engine that had nothing to do.
"""

from __future__ import annotations

import threading

MIN_RETRY_AFTER_S = 0.1
"""Shorter waits would fill the server with refusals."""
MAX_RETRY_AFTER_S = 60.0
"""Clients take a longer one for a mistake, and wait as they please."""

FIRST_GUESS_S = 0.1
"""How long a request runs, before any has ended."""
MEASURED_BATCHES = 4
"""About as many of the latest requests count as fill the batch so often."""
MIN_MEASURED = 16
"""And at least so many: requests differ in length."""
GUESSED_SHARE = 0.5
"""Weight of the first guess, beside 1 for what is measured: the engine may be half as fast again as it was."""


class RetrySchedule:
    """The times at which the clients of one queue are told to come back. Thread-safe."""

    def __init__(self, slots: int) -> None:
        """`slots` requests run at the same time."""
        self._slots = slots
        num_measured = max(MIN_MEASURED, MEASURED_BATCHES * slots)
        self._kept = 1 - 1 / num_measured
        """Weight of what was measured before, for each request that ends."""
        self._num_guessed = GUESSED_SHARE * num_measured
        self._lock = threading.Lock()
        self._num_ended = 0.0
        self._run_s = 0.0
        self._last_place = float("-inf")
        """When the last place that somebody was told of is expected to be free."""

    def ran(self, run_s: float, num_ended: int) -> None:
        """Requests ran for `run_s` seconds in all, each for itself, and `num_ended` of them have ended.

        What has not ended counts from the start, so that a wait grows while the first requests take long; an idle
        engine runs nothing, and its pauses count for nothing.
        """
        with self._lock:
            for _ in range(num_ended):
                self._num_ended = self._kept * self._num_ended + 1
                self._run_s *= self._kept
            self._run_s += run_s

    @property
    def run_s(self) -> float:
        """Seconds that a request runs, without its wait, as measured. FIRST_GUESS_S counts as one request."""
        with self._lock:
            return (self._run_s + FIRST_GUESS_S) / (self._num_ended + 1)

    def refuse(self, now: float, num_places: int = 1) -> float:
        """Seconds after which a client that needs `num_places` should come back; the places are kept for it.

        From MIN_RETRY_AFTER_S to MAX_RETRY_AFTER_S. `now` is in seconds, of a clock that goes on while nothing runs.
        """
        with self._lock:
            self._last_place = max(self._last_place, now) + num_places * self._place_s()
            if self._last_place - now > MAX_RETRY_AFTER_S:
                # Beyond the limit the places are given out anew: to tell everyone the limit would send a crowd.
                self._last_place = now + MAX_RETRY_AFTER_S / 2
            return max(MIN_RETRY_AFTER_S, self._last_place - now)

    def _place_s(self) -> float:
        """Seconds from one free place to the next while all slots are taken.

        The guess keeps its weight: it counts as so many requests that ended sooner than those that were measured.
        """
        total_s = self._run_s + self._num_guessed * FIRST_GUESS_S
        return total_s / (self._num_ended + self._num_guessed) / self._slots
