"""Triton kernels of the weighted sum of a token's experts, and of their hidden values.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.program_kernels import unit_of
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous


@triton.jit(do_not_specialize=["num_slots"])
def combine_experts(
    pairs,  # float32 [T, k, rows], one row per pair
    ids,  # int32 [T, k]
    weights,  # float32 [T, k]
    bias,  # float32 [num_slots, rows], if HAS_BIAS
    out,  # float32 [T, rows]
    num_slots,
    num_rows,
    HAS_BIAS: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum a token's pairs, plus their experts' biases, in their order; `pairs` has no data for ids outside
    0…num_slots - 1."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    has_row = row < num_rows
    total = tl.full((BLOCK,), 0.0, dtype=tl.float32)
    for index in range(PAIRS):
        pair = token * PAIRS + index
        slot = tl.load(ids + pair)
        is_here = (slot >= 0) & (slot < num_slots)
        value = tl.load(pairs + pair * num_rows + row, mask=has_row & is_here, other=0.0)
        if HAS_BIAS:
            value += tl.load(bias + slot.to(tl.int64) * num_rows + row, mask=has_row & is_here, other=0.0)
        total += value * tl.load(weights + pair)
    tl.store(out + token * num_rows + row, total, mask=has_row)


@triton.jit(do_not_specialize=["num_slots"])
def apply_unit(
    gate,  # float32 [pairs, width], products with gate; hidden values afterwards
    up,  # float32 [pairs, width], products with up
    ids,  # int32 [pairs]
    gate_bias,  # float32 [num_slots, width], if HAS_BIASES
    up_bias,
    num_slots,
    width,
    alpha,
    limit,
    UNIT: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: pairs, blocks of columns. Pairs whose ids are outside 0…num_slots - 1 are left unchanged."""
    wait_for_previous()
    pair = tl.program_id(0).to(tl.int64)
    slot = tl.load(ids + pair)
    if (slot >= 0) & (slot < num_slots):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_there = column < width
        place = pair * width + column
        value = tl.load(gate + place, mask=is_there, other=0.0)
        other = tl.load(up + place, mask=is_there, other=0.0)
        if HAS_BIASES:
            of_bias = slot.to(tl.int64) * width + column
            value += tl.load(gate_bias + of_bias, mask=is_there, other=0.0)
            other += tl.load(up_bias + of_bias, mask=is_there, other=0.0)
        tl.store(gate + place, unit_of(value, other, alpha, limit, UNIT), mask=is_there)
