"""The rows of a memory plan: weights by group, device and type, and uses of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ballast.model.modules import module_of
from ballast.model.tensors import GROUPS, Group, group_of
from ballast.weights.gguf import GgufModel


@dataclass(frozen=True, slots=True)
class WeightRow:
    """Tensors of one group, device and type."""

    group: Group
    device: str
    ggml_type: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One use of memory. `detail` says what it follows from."""

    name: str
    num_bytes: int
    detail: str
    option: str | None = None
    """The option, beside cache_lens, whose lower value makes it smaller."""


def weight_rows(
    gguf: GgufModel, devices: Mapping[str, str], weights: Mapping[str, tuple[str, int]]
) -> Iterator[WeightRow]:
    """`devices`: by module; `weights`: name → (tensor that it is made of, bytes)."""
    tensors: Counter[tuple[Group, str, str]] = Counter()
    sizes: Counter[tuple[Group, str, str]] = Counter()
    for name, (source, num_bytes) in weights.items():
        key = (group_of(name), devices[module_of(name)], gguf.tensors[source].ggml_type.name)
        tensors[key] += 1
        sizes[key] += num_bytes
    for key in sorted(tensors, key=lambda key: (GROUPS.index(key[0]), *key)):
        yield WeightRow(*key, tensors[key], sizes[key])
