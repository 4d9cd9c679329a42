"""A work queue of keys: a key queued many times is worked on once, by one worker at a time, and retried on failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ballast_operator.backoff import backoff_s

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0
MAX_HOLD_OFF_S = 5.0
"""Longest time after a failure during which an enqueued key is not started, unless the error asks for longer."""
JITTER = 0.2
"""Delays grow by a random share of up to this, so that keys that failed together do not come back together."""


@dataclass(slots=True)
class _Entry:
    due: float
    """Loop time at which it is to run; infinite while it is not enqueued."""
    not_before: float = 0.0
    """Loop time before which it does not run, even if it is enqueued."""
    failures: int = 0
    running: bool = False


class WorkQueue(Generic[Key]):
    """Runs `work` for enqueued keys. A key that is enqueued while it is worked on is worked on once more.

    `work` returns the seconds after which the key is due again, or None. If it raises, the key comes back after a delay
    that doubles with each failure in a row and is at least the error's `retry_after_s`. `random` returns numbers from 0
    to 1, `clock` the event loop's time in seconds. `on_done` is called after each run with its duration and error.
    """

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        *,
        num_workers: int,
        random: Callable[[], float],
        clock: Callable[[], float],
        on_done: Callable[[float, Exception | None], None] = lambda seconds, error: None,
    ) -> None:
        self._work = work
        self._num_workers = num_workers
        self._random = random
        self._clock = clock
        self._on_done = on_done
        self._entries: dict[Key, _Entry] = {}
        self._changed = asyncio.Event()
        self._num_running = 0

    def enqueue(self, key: Key) -> None:
        """Reconcile the key as soon as a worker is free. Call it on the event loop."""
        due = self._clock()
        entry = self._entries.setdefault(key, _Entry(due))
        entry.due = min(entry.due, due)
        self._changed.set()

    def _start(self, entry: _Entry) -> float:
        return max(entry.due, entry.not_before)

    @property
    def depth(self) -> int:
        """Number of keys that are due and wait for a worker."""
        now = self._clock()
        return sum(1 for entry in self._entries.values() if self._start(entry) <= now and not entry.running)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as workers:
            while True:
                self._changed.clear()
                now = self._clock()
                for key, entry in self._ready(now):
                    entry.running, entry.due = True, float("inf")
                    self._num_running += 1
                    workers.create_task(self._run_one(key, entry))
                await self._wait(now)

    def _ready(self, now: float) -> list[tuple[Key, _Entry]]:
        waiting = [
            (key, entry) for key, entry in self._entries.items() if self._start(entry) <= now and not entry.running
        ]
        waiting.sort(key=lambda item: item[1].due)
        return waiting[: self._num_workers - self._num_running]

    async def _wait(self, now: float) -> None:
        idle = [self._start(entry) for entry in self._entries.values() if not entry.running]
        full = self._num_running >= self._num_workers
        wait_s = None if full or not idle or min(idle) == float("inf") else max(0.0, min(idle) - now)
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _run_one(self, key: Key, entry: _Entry) -> None:
        began = self._clock()
        failure: Exception | None = None
        try:
            again_s = await self._work(key)
            entry.failures = 0
        except Exception as error:  # noqa: BLE001  any error of one key must not stop the others
            failure = error
            entry.failures += 1
            retry_after_s = getattr(error, "retry_after_s", None) or 0.0
            again_s = max(backoff_s(FIRST_BACKOFF_S, MAX_BACKOFF_S, entry.failures - 1), retry_after_s)
            entry.not_before = self._clock() + max(min(again_s, MAX_HOLD_OFF_S), retry_after_s)
            log.warning("will try again", extra={"key": str(key), "in_s": round(again_s, 1), "error": str(error)})
        finally:
            entry.running = False
            self._num_running -= 1
            self._changed.set()
        self._on_done(self._clock() - began, failure)
        if again_s is not None:
            entry.due = min(entry.due, self._clock() + again_s * (1 + JITTER * self._random()))
        elif entry.due == float("inf"):
            del self._entries[key]
