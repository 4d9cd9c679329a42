"""Decides when a client whose request was refused should retry. Pure: the caller passes the time.

A request is refused because the queue is full; a slot in the queue becomes free when a running request ends. So the
wait depends on how many requests have to end, and each refusal reserves the next slot: clients that were refused
together come back one after another, as fast as the engine can serve them.

The estimate is rather too short than too long. A client that comes too early is refused again, which is cheap; a
client that comes too late may leave the engine idle.
"""

from __future__ import annotations

import threading

MIN_RETRY_AFTER_S = 0.1
"""Shorter waits would overload the server with refusals."""
MAX_RETRY_AFTER_S = 60.0
"""Clients treat a longer wait as an error, and wait as long as they like."""

FIRST_GUESS_S = 0.1
"""Estimated run time of a request before any has ended."""
MEASURED_BATCHES = 4
"""The measurement covers about as many recent requests as fill the batch this many times."""
MIN_MEASURED = 16
"""The measurement covers at least this many requests, because requests differ in length."""
GUESSED_SHARE = 0.5
"""Weight of the first guess, if a measured request has weight 1: the engine may be half as fast again as measured."""


class RetrySchedule:
    """The times at which the refused clients of one queue should retry. Thread-safe."""

    def __init__(self, slots: int) -> None:
        """`slots` requests run at the same time."""
        self._slots = slots
        num_measured = max(MIN_MEASURED, MEASURED_BATCHES * slots)
        self._kept = 1 - 1 / num_measured
        """Factor by which each ended request reduces the weight of earlier ones."""
        self._num_guessed = GUESSED_SHARE * num_measured
        self._lock = threading.Lock()
        self._num_ended = 0.0
        self._run_s = 0.0
        self._last_slot_s = float("-inf")
        """When the last reserved slot is expected to be free."""

    def ran(self, run_s: float, num_ended: int) -> None:
        """Record that requests ran for `run_s` seconds, added up over requests, and that `num_ended` of them ended.

        Requests that still run count too, so the estimate grows while the first requests take long. An idle engine
        adds nothing.
        """
        with self._lock:
            for _ in range(num_ended):
                self._num_ended = self._kept * self._num_ended + 1
                self._run_s *= self._kept
            self._run_s += run_s

    @property
    def run_s(self) -> float:
        """Measured seconds that a request runs, without its wait. FIRST_GUESS_S counts as one request."""
        with self._lock:
            return (self._run_s + FIRST_GUESS_S) / (self._num_ended + 1)

    def refuse(self, now: float, num_slots: int = 1) -> float:
        """Seconds after which a client that needs `num_slots` should retry; the slots are reserved for it.

        From MIN_RETRY_AFTER_S to MAX_RETRY_AFTER_S. `now` is in seconds, of a clock that also runs while the engine is
        idle.
        """
        with self._lock:
            self._last_slot_s = max(self._last_slot_s, now) + num_slots * self._slot_s()
            if self._last_slot_s - now > MAX_RETRY_AFTER_S:
                # Slots beyond the limit are assigned again from the middle: one time for all would cause a burst.
                self._last_slot_s = now + MAX_RETRY_AFTER_S / 2
            return max(MIN_RETRY_AFTER_S, self._last_slot_s - now)

    def _slot_s(self) -> float:
        """Seconds between two free slots while the batch is full.

        FIRST_GUESS_S keeps its weight: it counts as GUESSED_SHARE of a request for each slot.
        """
        total_s = self._run_s + self._num_guessed * FIRST_GUESS_S
        return total_s / (self._num_ended + self._num_guessed) / self._slots
