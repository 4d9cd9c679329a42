"""Timers for clients, in a process that may be paused with its whole machine.

A timer that fires long after its due time was delayed by such a pause. The client could not act during the pause, so
the timer starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def is_late(due: float | None, limit_s: float) -> bool:
    """Whether a timer of `limit_s` that was due at `due` (time of the running loop) fires late relative to its limit.
    None: it had no limit."""
    return due is not None and asyncio.get_running_loop().time() - due > limit_s / 8


class LateTimer:
    """Calls `action` after `limit_s` seconds, unless it is cancelled before."""

    def __init__(self, limit_s: float, action: Callable[[], object]) -> None:
        self._limit_s = limit_s
        self._action = action
        self._start()

    def cancel(self) -> None:
        """Cancel the timer."""
        self._handle.cancel()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._limit_s
        self._handle = loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        if is_late(self._due, self._limit_s):
            self._start()
        else:
            self._action()
