"""The parts of a layer's KV cache."""

from __future__ import annotations

from typing import NamedTuple


class Plane(NamedTuple):
    """A named part of a layer's cache, with one row per token."""

    name: str
    width: int
    """Numbers per token. The pool decides their type: float32 on a CPU."""


INDEX_KEYS = "index keys"
"""The plane of an indexer's keys."""
