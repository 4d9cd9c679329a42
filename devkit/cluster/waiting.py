"""Every wait has a limit and says, when it passes, what it last saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TimedOutError(AssertionError):
    """Something did not become true within its limit."""


FIRST_INTERVAL_S, LONGEST_INTERVAL_S, GROWTH = 0.05, 0.2, 1.3
"""Between two probes: what takes long is asked for seldom, since most probes cost an API server work."""


def wait_for(what: str, probe: Callable[[], T], timeout_s: float = 180, interval_s: float | None = None) -> T:
    """The first true answer of `probe`, asked until `timeout_s` has passed, every `interval_s` if that is given.

    A probe may fail with an AssertionError to say what is missing; the last one is shown.
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
