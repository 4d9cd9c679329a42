"""How long a GPU takes, by its own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

REPEATS = 5


def median_us(run: Callable[[], object]) -> float:
    """The median of some runs on the current stream, in microseconds; one more comes first and does not count."""
    run()
    times: list[float] = []
    for _ in range(REPEATS):
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)
