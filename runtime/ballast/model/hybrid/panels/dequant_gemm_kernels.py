"""Triton kernels that multiply packed matrices with tiles of tokens on tensor cores; weights are decoded in registers.

A program computes some panels of one slot (a head, or an expert) for a tile of tokens, over a fraction (split) of the
columns. The order of sums depends only on the matrix and the tile's size, so a token's result does not depend on the
others. Quantised weights and their activations are rounded to half precision (half_kernels.py). For weights that are
floats, each number is two bfloat16 terms (bf16_split_kernels.py): a product of two numbers takes three products of
terms, and omits the product of the lower terms.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.bf16_split_kernels import rounded
from ballast.model.hybrid.panels.dequant_kernels import factor_of, lines_of, weight_of
from ballast.model.hybrid.panels.half_kernels import scaled_codes_of
from ballast.model.hybrid.panels.program_kernels import results_of_tile, rows_of, slot_of_tile, steps_of, store
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous

_RUN_TIME = ["num_tokens", "num_slots", "sharing", "panels_per_slot", "steps_per_split", "split_stride"]
"""Arguments for whose values Triton compiles no separate kernels: all batch sizes and shapes share one."""


@triton.jit
def _multiply_terms(sums, weight, terms, padded_cols, has_token):
    """sums [ROWS, BLOCK_T] + weight [ROWS, K] · x, read as terms [K, BLOCK_T]."""
    term = terms.dtype.element_ty
    upper = rounded(weight)
    lower = (weight - upper).to(term)
    upper = upper.to(term)
    upper_x = tl.load(terms, mask=has_token[None, :], other=0.0)
    lower_x = tl.load(terms + padded_cols, mask=has_token[None, :], other=0.0)
    sums = tl.dot(lower, upper_x, sums, input_precision="ieee")
    sums = tl.dot(upper, lower_x, sums, input_precision="ieee")
    return tl.dot(upper, upper_x, sums, input_precision="ieee")


@triton.jit
def _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED: tl.constexpr, BLOCK_T: tl.constexpr):
    """(slot, split, row of x, row of the result, whether it exists) of the program's tokens. If tokens are not grouped,
    slots are heads, and every token has all of them."""
    if IS_GROUPED:
        slot = slot_of_tile(tiles)
        split = tl.program_id(2)
        x_row, result, has_token = results_of_tile(order, tiles, sharing, tl.arange(0, BLOCK_T))
    else:
        slot = tl.program_id(2) % num_slots
        split = tl.program_id(2) // num_slots
        token = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
        has_token = token < num_tokens
        result = token.to(tl.int64) * num_slots + slot
        x_row = result
    return slot, split, x_row.to(tl.int64), result.to(tl.int64), has_token


@triton.jit
def _store(sums, out, gate, result, row, has_token, num_rows, HAS_GATE: tl.constexpr):
    """Store sums [ROWS, BLOCK_T], one per row of the matrix and token."""
    kept = (row < num_rows)[:, None] & has_token[None, :]
    store(sums, out, gate, result[None, :] * num_rows + row[:, None], kept, HAS_GATE)


@triton.jit(do_not_specialize=_RUN_TIME)
def quantized_gemm(
    x,  # float16 [x_rows, padded_cols], as `round_to_half` orders them
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    points,  # int32, of the type's grid, or unused
    scales,  # float32, of each slot's matrix, or unused
    out,  # float32 [splits, results, num_rows]
    gate,  # float32 [results, num_rows], or unused
    order,  # int32, and
    tiles,  # int32 [tiles, 3], of grouped tokens, or unused
    num_tokens,
    num_slots,
    sharing,
    num_rows,
    cols,
    panels_per_slot,
    panel_words,
    scale_words,
    padded_cols,
    steps_per_split,
    split_stride,
    LAYOUT: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """out = x Wᵀ for a quantised type, one sum per split. Grid: blocks of rows, tiles of tokens, splits of the columns
    (times slots if tokens are not grouped)."""
    wait_for_previous()
    slot, split, x_row, result, has_token = _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED, BLOCK_T)
    row, has_row, begin = rows_of(slot, panels_per_slot, panel_words, ROWS)
    factor = factor_of(scales, slot, LAYOUT)
    lines = lines_of(words, halves, codes, points, factor, begin[:, None], (row % 16)[:, None])

    index = tl.arange(0, GROUPS * 4)
    line = index % 4
    row_x = x + x_row[None, :] * padded_cols + index[:, None]
    num_groups = cols // 32
    sums = tl.full((ROWS, BLOCK_T), 0.0, dtype=tl.float32)
    first, end = steps_of(split, steps_per_split, slot, IS_GROUPED)
    for step in range(first, tl.minimum(end, padded_cols // (GROUPS * 32))):
        group = step * GROUPS + index // 4
        has_group = group < num_groups
        inside = has_row[:, None] & has_group[None, :]
        for half in tl.static_range(2):
            word, scale, rest = scaled_codes_of(lines, scale_words, group[None, :], line[None, :], half, inside, LAYOUT)
            for byte in tl.static_range(4):
                weight = weight_of(word, byte, scale, rest, LAYOUT).to(tl.float16)
                piece = (step * 8 + half * 4 + byte) * (GROUPS * 4)
                own_x = tl.load(row_x + piece, mask=has_token[None, :], other=0.0)
                sums = tl.dot(weight, own_x, sums)
    _store(sums, out + split * split_stride, gate, result, row, has_token, num_rows, HAS_GATE)


@triton.jit(do_not_specialize=_RUN_TIME)
def float_gemm(
    terms,  # [x_rows, 2, padded_cols], see split_bf16
    values,  # the panels, seen as their floats
    out,  # as above, also the next arguments
    gate,
    order,
    tiles,
    num_tokens,
    num_slots,
    sharing,
    num_rows,
    cols,
    panels_per_slot,
    panel_size,  # in floats
    padded_cols,
    steps_per_split,
    split_stride,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    STEP_COLS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """As `quantized_gemm`, for panels of floats, [cols, 16 rows]."""
    wait_for_previous()
    slot, split, x_row, result, has_token = _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED, BLOCK_T)
    row, has_row, begin = rows_of(slot, panels_per_slot, panel_size, ROWS)
    row_values = values + (begin + row % 16)[:, None]

    index = tl.arange(0, STEP_COLS)
    row_terms = terms + x_row[None, :] * (2 * padded_cols) + index[:, None]
    sums = tl.full((ROWS, BLOCK_T), 0.0, dtype=tl.float32)
    first, end = steps_of(split, steps_per_split, slot, IS_GROUPED)
    for step in range(first, tl.minimum(end, padded_cols // STEP_COLS)):
        col = step * STEP_COLS + index
        weight = tl.load(row_values + col[None, :] * 16, mask=has_row[:, None] & (col < cols)[None, :], other=0.0)
        sums = _multiply_terms(sums, weight.to(tl.float32), row_terms + step * STEP_COLS, padded_cols, has_token)
    _store(sums, out + split * split_stride, gate, result, row, has_token, num_rows, HAS_GATE)
