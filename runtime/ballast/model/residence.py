"""Finds where a loaded model's weights are in memory."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ballast._core import kernels, numa
from ballast.host.numa import WeightMemory
from ballast.model.layers.ngram import TABLE


def weight_memory(weights: object) -> WeightMemory:
    """The address ranges of all matrices in host memory. Vectors are too small to matter, and of a table of groups of
    tokens the page cache has what is read."""
    loaded = list(_loaded(weights))
    experts: defaultdict[int, list[numa.Range]] = defaultdict(list)
    for each in loaded:
        if isinstance(each, kernels.Experts):
            for node, range_ in each.memory:
                experts[node].append(range_)
    return WeightMemory(
        experts=experts,
        others=[range_ for each in loaded if isinstance(each, kernels.Matrix) for range_ in each.memory],
    )


def _loaded(value: object) -> Iterator[kernels.Experts | kernels.Matrix]:
    if isinstance(value, kernels.Experts | kernels.Matrix):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _loaded(item)
    elif isinstance(value, Mapping):
        yield from _loaded(tuple(each for role, each in value.items() if role != TABLE))
    elif dataclasses.is_dataclass(value):
        yield from _loaded({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
