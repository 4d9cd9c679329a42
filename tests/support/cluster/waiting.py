"""Every wait has a limit and says, when it passes, what it last saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TimedOutError(AssertionError):
    """Something did not become true within its limit."""


def wait_for(what: str, probe: Callable[[], T], timeout_s: float = 180, interval_s: float = 0.05) -> T:
    """The first true answer of `probe`, asked until `timeout_s` has passed.

    A probe may fail with an AssertionError to say what is missing; the last one is shown.
    """
    until = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            last = probe()
            if last:
                return last
        except AssertionError as missing:
            last = missing
        if time.monotonic() > until:
            raise TimedOutError(f"{what}: not within {timeout_s:g} s; last seen: {last!r}")
        time.sleep(interval_s)
