"""Delays between attempts that double with each failure in a row."""

from __future__ import annotations

MAX_DOUBLINGS = 20
"""Bounds the power; every limit in use is reached long before."""


def backoff_s(first_s: float, max_s: float, failures: int) -> float:
    """Seconds until the next attempt: `first_s`, doubled for each of the earlier `failures`, and at most `max_s`."""
    return min(max_s, first_s * 2.0 ** min(failures, MAX_DOUBLINGS))
