"""Waiting for conditions. Every wait has a limit; its error contains the last observation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TimedOutError(AssertionError):
    """A condition was not met within its time limit."""


FIRST_INTERVAL_S, LONGEST_INTERVAL_S, GROWTH = 0.05, 0.2, 1.3
"""Interval between two probes. It grows during a long wait, because most probes load an API server."""


def wait_for(what: str, probe: Callable[[], T], timeout_s: float = 180, interval_s: float | None = None) -> T:
    """The first true result of `probe`, called until `timeout_s` has passed, every `interval_s` if that is given.

    A probe may raise AssertionError to describe what is missing; the last message is shown.
    """
    until = time.monotonic() + timeout_s
    last: object = None
    pause_s = FIRST_INTERVAL_S if interval_s is None else interval_s
    while True:
        try:
            last = probe()
            if last:
                return last
        except AssertionError as missing:
            last = missing
        if time.monotonic() > until:
            raise TimedOutError(f"{what}: not within {timeout_s:g} s; last seen: {last!r}")
        time.sleep(pause_s)
        if interval_s is None:
            pause_s = min(pause_s * GROWTH, LONGEST_INTERVAL_S)
