"""Finds where a loaded model's weights are in memory."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ballast._core import kernels, numa
from ballast.host.numa import WeightMemory


def weight_memory(weights: object) -> WeightMemory:
    """The address ranges of all matrices in host memory. Vectors are too small to matter."""
    parts = list(_parts(weights))
    experts: defaultdict[int, list[numa.Range]] = defaultdict(list)
    for part in parts:
        if isinstance(part, kernels.Experts):
            for node, place in part.memory:
                experts[node].append(place)
    return WeightMemory(
        experts=experts,
        others=[place for part in parts if isinstance(part, kernels.Matrix) for place in part.memory],
    )


def _parts(value: object) -> Iterator[kernels.Experts | kernels.Matrix]:
    if isinstance(value, kernels.Experts | kernels.Matrix):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, Mapping):
        yield from _parts(tuple(value.values()))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
