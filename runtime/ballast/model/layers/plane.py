"""The parts of a layer's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

KvType = Literal["fp32", "fp16", "fp8"]
"""The type of a cache: float32 on a CPU only, half precision, 8 bits on a GPU only."""


class Plane(NamedTuple):
    """A named part of a layer's cache, with one row per token."""

    name: str
    width: int
    """Numbers per token. The pool decides their type."""
    window: int | None = None
    """Tokens that are read of it: the last ones up to a token's own. None: all."""
    num_short: int = 0
    """How many of these numbers, the first ones, have 8 bits in a cache of 8 bits. The others have 16."""
    scale_width: int = 1
    """Consecutive numbers of 8 bits that share a scale."""


class State(NamedTuple):
    """A named part of what a layer keeps of a sequence, however long it is."""

    name: str
    size: int
    """Numbers, which are float32."""

    @property
    def num_bytes(self) -> int:
        return _STATE_NUMBER_BYTES * self.size


INDEX_KEYS = "index keys"
"""The plane of an indexer's keys."""
ROW_ALIGNMENT = 16
"""Rows of 8 bits begin at multiples of this many bytes, so that all their loads are aligned."""
_NUMBER_BYTES = {"fp32": 4, "fp16": 2}
_SCALE_BYTES = 4
_STATE_NUMBER_BYTES = 4


def row_bytes(planes: Sequence[Plane], kv_type: KvType) -> int:
    """Bytes of a token in one layer's cache, in all its planes."""
    if kv_type != "fp8":
        return _NUMBER_BYTES[kv_type] * sum(plane.width for plane in planes)
    read_together = sum(_short_bytes(plane) for plane in planes if plane.name != INDEX_KEYS)
    index_keys = sum(_short_bytes(plane) for plane in planes if plane.name == INDEX_KEYS)
    return -(-read_together // ROW_ALIGNMENT) * ROW_ALIGNMENT + index_keys


def _short_bytes(plane: Plane) -> int:
    scales = _SCALE_BYTES * (plane.num_short // plane.scale_width)
    return plane.num_short + scales + 2 * (plane.width - plane.num_short)
