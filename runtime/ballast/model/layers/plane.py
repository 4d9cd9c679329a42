"""The parts of a layer's cache."""

from __future__ import annotations

from typing import NamedTuple


class Plane(NamedTuple):
    """A named part of a layer's cache, with one row per token."""

    name: str
    width: int
    """Numbers per token. The pool decides their type: float32 on a CPU."""
    window: int | None = None
    """Tokens that are read of it: the last ones up to a token's own. None: all."""


class State(NamedTuple):
    """A named part of what a layer keeps of a sequence, however long it is."""

    name: str
    size: int
    """Numbers, which are float32."""


INDEX_KEYS = "index keys"
"""The plane of an indexer's keys."""
