"""Times of calls and of an engine's decode steps, for benchmarks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from ballast.engine.core import EngineCore


def best_of(run: Callable[[], None], times: int = 10) -> float:
    """Seconds of the fastest of `times` calls; other load on the machine only makes calls slower."""
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def median_decode_s(core: EngineCore, num_requests: int) -> float:
    """Median seconds of the steps in which this many requests decode. Runs until no work is left."""
    return statistics.median(decode_times(core, num_requests))


def decode_times(core: EngineCore, num_requests: int) -> list[float]:
    """Seconds of each step in which this many requests decode. Runs until no work is left."""
    times, is_running = [], True
    while is_running:
        begin = time.perf_counter()
        result = core.step()
        if result.kind == "decode" and len(result.events) == num_requests:
            times.append(time.perf_counter() - begin)
        is_running = result.num_tokens > 0
    return times
