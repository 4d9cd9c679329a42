"""The least time of a call, for benchmarks of kernels: what the machine does besides only makes it longer."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(run: Callable[[], None], times: int = 10) -> float:
    """Seconds of the fastest of so many calls."""
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best
