"""Triton kernel of the weighted sum of a token's experts.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_experts(
    pairs,  # float32 [T, k, rows], one row per pair
    ids,  # int32 [T, k]
    weights,  # float32 [T, k]
    out,  # float32 [T, rows]
    num_slots,
    num_rows,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum a token's pairs in their order; `pairs` has no data for ids outside 0…num_slots - 1."""
    token = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    has_row = row < num_rows
    total = tl.full((BLOCK,), 0.0, dtype=tl.float32)
    for index in range(PAIRS):
        pair = token * PAIRS + index
        slot = tl.load(ids + pair)
        is_here = (slot >= 0) & (slot < num_slots)
        value = tl.load(pairs + pair * num_rows + row, mask=has_row & is_here, other=0.0)
        total += value * tl.load(weights + pair)
    tl.store(out + token * num_rows + row, total, mask=has_row)
