"""What products on the CPU take for each token and keep for the next call (`csrc/base/scratch.h`), in bytes."""

from __future__ import annotations

from ballast.plan.memory import FLOAT_BYTES

_ROUNDED_BYTES = 4
"""Of an activation rounded to two bytes: a block of 32 has its scale and sums besides, on a cache line of its own."""
_ARRANGED_BYTES = 3
"""Of one that is put into the order of AMX tiles besides, with what the tiles' sums are finished with."""


def input_bytes(cols: int) -> int:
    """Of a product's input: `cols` activations, rounded."""
    return cols * _ROUNDED_BYTES


def hidden_bytes(cols: int) -> int:
    """Between gate and up and down, where each of `cols` activations is a float first."""
    return cols * (FLOAT_BYTES + _ROUNDED_BYTES + _ARRANGED_BYTES)


def sums_bytes(hidden: int, num_calls: int, num_nodes: int) -> int:
    """Of each NUMA node's share of the results, where there are several."""
    return num_calls * num_nodes * hidden * FLOAT_BYTES if num_nodes > 1 else 0
