"""Merges the splits of a row of attention. Triton's built-in operations only: see reduce_kernels.py."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus


@triton.jit
def merge_splits(
    sums,  # float32 [splits, T, heads, WIDTH], the average of each split
    peaks,  # float32 [splits, T, heads], base-2 logarithms of the splits' weights
    attended,  # float32 [T, heads, WIDTH]
    num_used,  # the first splits, which have results
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,  # maximum splits, a power of two
    BLOCK: tl.constexpr,
):
    """Merge the splits of a row. Grid: tokens, heads, blocks of columns."""
    num_rows = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    is_used = split < num_used
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < WIDTH
    place = split * num_rows + row
    peak = tl.load(peaks + place, mask=is_used, other=float("-inf"))
    average = tl.load(
        sums + place[:, None] * WIDTH + column[None, :], mask=is_used[:, None] & is_there[None, :], other=0.0
    )
    weight = tl.exp2(peak - tl.reduce(peak, 0, larger))
    result = tl.reduce(average * weight[:, None], 0, plus) / tl.reduce(weight, 0, plus)
    tl.store(attended + row * WIDTH + column, result, mask=is_there)
