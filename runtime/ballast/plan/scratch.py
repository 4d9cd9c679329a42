"""Bytes per token that products on the CPU allocate and keep for the next call (`csrc/base/scratch.h`)."""

from __future__ import annotations

from ballast.plan.memory import FLOAT_BYTES

_ROUNDED_BYTES = 4
"""Bytes of an activation rounded to two bytes; each block of 32 also has a scale and sums, on its own cache line."""
_ARRANGED_BYTES = 3
"""Additional bytes of an activation in the order of AMX tiles, including the correction of the tiles' sums."""


def input_bytes(cols: int) -> int:
    """The input of a product: `cols` activations, rounded."""
    return cols * _ROUNDED_BYTES


def hidden_bytes(cols: int) -> int:
    """The hidden values between up and down: `cols` activations, as floats and then rounded."""
    return cols * (FLOAT_BYTES + _ROUNDED_BYTES + _ARRANGED_BYTES)


def sums_bytes(hidden: int, num_calls: int, num_nodes: int) -> int:
    """Each NUMA node's partial results, if there are several nodes."""
    return num_calls * num_nodes * hidden * FLOAT_BYTES if num_nodes > 1 else 0
