"""Numbers of tokens that between them use every kernel that steps use: with them kernels are compiled and tried when a
model is loaded, so that no step ever waits for a compiler."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ballast.model.hybrid.experts.fused_routing import FEW_PAIRS
from ballast.model.hybrid.panels.products import (
    LEAST_WIDE_TOKENS,
    MOST_ROW_TOKENS,
    grouped_tile_block,
    tile_block,
)


def counts_for_experts(most: int, num_used: int) -> list[int]:
    """Ascending, `most` among them; for experts of which a token has `num_used`."""
    return _one_of_each(lambda count: _kernels_of_experts(count, num_used), most)


def counts_for_steps(most: int, num_used: int) -> list[int]:
    """The same for all that a step computes."""
    return _one_of_each(lambda count: (_kernels_of_linears(count), _kernels_of_experts(count, num_used)), most)


def _one_of_each(kernels: Callable[[int], Hashable], most: int) -> list[int]:
    """The first of each run of numbers that share all kernels; `most` for the last run."""
    firsts = [count for count in range(1, most + 1) if count == 1 or kernels(count) != kernels(count - 1)]
    return [*firsts[:-1], most]


def _kernels_of_linears(count: int) -> Hashable:
    if count >= LEAST_WIDE_TOKENS:
        return None
    return _room(count), count <= MOST_ROW_TOKENS, tile_block(count)


def _kernels_of_experts(count: int, num_used: int) -> Hashable:
    block = _room(count) if count <= MOST_ROW_TOKENS else grouped_tile_block(count)
    num_pairs = count * num_used
    # Few pairs of token and expert are divided and grouped by kernels with room for so many.
    room = _room(num_pairs) if count <= block and num_pairs <= FEW_PAIRS else None
    return block, count <= MOST_ROW_TOKENS, room


def _room(count: int) -> int:
    return 1 << (count - 1).bit_length()
