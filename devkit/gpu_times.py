"""How long a GPU takes, by its own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

REPEATS = 5
CALLS = 8
"""In one graph."""


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


def captured_us(calls: Sequence[Callable[[], object]]) -> float:
    """The median of some replays of a graph that calls these in turn, in microseconds a call: without what launching
    costs the host."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(CALLS):
            calls[index % len(calls)]()
    return median_us(graph.replay) / CALLS
