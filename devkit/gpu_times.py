"""GPU times, measured with the GPU's own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

REPEATS = 5
CALLS = 8
"""Calls captured in one graph."""


def median_us(run: Callable[[], object]) -> float:
    """Median time of several runs on the current stream, in microseconds, after one warm-up run."""
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


def captured_us(calls: Sequence[Callable[[], object]]) -> float:
    """Median time per call in microseconds, from replays of a graph that captures `calls` in order. Excludes launch
    overhead on the host."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(CALLS):
            calls[index % len(calls)]()
    return median_us(graph.replay) / CALLS
