"""Triton kernels that multiply packed matrices with the vectors of one to four tokens, without tensor cores.

A program processes a block of rows over a fraction (split) of the columns, one tile [groups, rows] at a time, and
decodes each weight once for all tokens. Neighbouring rows of a group's line are adjacent in memory, so a thread loads
sixteen bytes; a thread has all columns of a group, so a scale is applied to their sum. Sums are float32.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,var-annotated"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.dequant_kernels import factor_of, lines_of, scales_of, words_of
from ballast.model.hybrid.panels.program_kernels import (
    is_last_to_arrive,
    results_of_tile,
    rows_of,
    slot_of_tile,
    steps_of,
    store,
    sum_of_splits,
)
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous

_RUN_TIME = ["num_tokens", "num_slots", "sharing", "panels_per_slot", "steps_per_split", "num_splits", "split_stride"]
"""Arguments for whose values Triton compiles no separate kernels: all batch sizes and shapes share one."""


@triton.jit
def _code(word, byte: tl.constexpr, BITS: tl.constexpr):
    """The code in the low bits of a byte as a float, decoded by a mask alone: the bits of an integer below 2^24, read
    as a float, are that integer times 2^-149. `_factor` scales products back to normal numbers."""
    if byte == 3:
        value = (word >> 8) & (((1 << BITS) - 1) << 16)
    else:
        value = word & (((1 << BITS) - 1) << (8 * byte))
    return value.to(tl.float32, bitcast=True)


@triton.jit
def _factor(byte: tl.constexpr):
    """The factor of an activation that makes its product with such a code 2^-53 times the true product."""
    return 2.0**96 if byte == 0 else 2.0**88 if byte == 1 else 2.0**80


@triton.jit
def _quad(row_x, first_col, has_group):
    """Four neighbouring values of a row, from each of the columns `first_col`."""
    values = tl.load(row_x + (first_col[:, None] + tl.arange(0, 4)[None, :]), mask=has_group[:, None], other=0.0)
    even, odd = tl.split(tl.reshape(values, (values.shape[0], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _token(order, tiles, num_tokens, num_slots, slot, sharing, index: tl.constexpr, IS_GROUPED: tl.constexpr):
    """(row of x, row of the result, whether the token exists) of the program's token `index`; the first rows if it does
    not exist, so that loads need no mask."""
    if IS_GROUPED:
        x_row, result, is_here = results_of_tile(order, tiles, sharing, index)
    else:
        is_here = index < num_tokens
        result = tl.where(is_here, index * num_slots + slot, slot)
        x_row = result
    return x_row.to(tl.int64), result.to(tl.int64), is_here


@triton.jit
def _tokens(
    x,
    order,
    tiles,
    num_tokens,
    num_slots,
    sharing,
    slot,
    row,
    num_rows,
    cols,
    IS_GROUPED: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """(rows of x, indices of the rows' results, which of them exist), each a tuple over the tokens."""
    rows_x = ()
    places = ()
    kept = ()
    for token in tl.static_range(TOKENS):
        x_row, result, is_here = _token(order, tiles, num_tokens, num_slots, slot, sharing, token, IS_GROUPED)
        rows_x = rows_x + (x + x_row * cols,)
        places = places + (result * num_rows + row,)
        kept = kept + ((row < num_rows) & is_here,)
    return rows_x, places, kept


@triton.jit
def _slot(tiles, IS_GROUPED: tl.constexpr):
    if IS_GROUPED:
        slot = slot_of_tile(tiles)
    else:
        slot = tl.program_id(1)
    return slot


@triton.jit
def _repeat(value, TOKENS: tl.constexpr):
    values = ()
    for _ in tl.static_range(TOKENS):
        values = values + (value,)
    return values


@triton.jit
def _reduce(
    sums,
    places,
    kept,
    out,
    gate,
    partial,
    arrived,
    num_splits,
    split_stride,
    HAS_GATE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Sum each token's tile and store it. If several programs share the columns, the last one to finish adds up the
    sums of all."""
    if IS_SPLIT:
        for token in tl.static_range(TOKENS):
            own = partial + tl.program_id(2) * split_stride
            tl.store(own + places[token], tl.reduce(sums[token], 0, tl.standard._sum_combine), mask=kept[token])
        counter = arrived + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if is_last_to_arrive(counter, num_splits):
            for token in tl.static_range(TOKENS):
                total = sum_of_splits(partial + places[token], kept[token], num_splits, split_stride)
                store(total, out, gate, places[token], kept[token], HAS_GATE)
            tl.store(counter, 0)
    else:
        for token in tl.static_range(TOKENS):
            total = tl.reduce(sums[token], 0, tl.standard._sum_combine)
            store(total, out, gate, places[token], kept[token], HAS_GATE)


@triton.jit(do_not_specialize=_RUN_TIME)
def quantized_gemv(
    x,  # float32 [x_rows, cols]
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    points,  # int32, of the type's grid, or unused
    scales,  # float32, of each slot's matrix, or unused
    out,  # float32 [results, num_rows]
    gate,  # float32 [results, num_rows], or unused
    partial,  # float32 [splits, results, num_rows], or unused
    arrived,  # int32, zeros, one per block of rows and tile (or slot)
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
    steps_per_split,
    num_splits,
    split_stride,
    LAYOUT: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """out = x Wᵀ for a quantised type. Grid: blocks of rows, tiles of tokens (or slots), splits of the columns."""
    wait_for_previous()
    slot = _slot(tiles, IS_GROUPED)
    row, has_row, begin = rows_of(slot, panels_per_slot, panel_words, ROWS)
    rows_x, places, kept = _tokens(
        x, order, tiles, num_tokens, num_slots, sharing, slot, row, num_rows, cols, IS_GROUPED, TOKENS
    )
    factor = factor_of(scales, slot, LAYOUT)
    lines = lines_of(words, halves, codes, points, factor, begin[None, :], (row % 16)[None, :])
    num_groups = cols // 32
    subs: tl.constexpr = LAYOUT.subs_per_group
    sums = _repeat(tl.full((GROUPS, ROWS), 0.0, dtype=tl.float32), TOKENS)
    first, end = steps_of(tl.program_id(2), steps_per_split, slot, IS_GROUPED)
    for step in range(first, end):
        group = step * GROUPS + tl.arange(0, GROUPS)
        has_group = group < num_groups
        inside = has_group[:, None] & has_row[None, :]
        for sub in tl.static_range(subs):
            scale, rest = scales_of(lines, scale_words, group[:, None], sub, inside, LAYOUT)
            parts = _repeat(tl.full((GROUPS, ROWS), 0.0, dtype=tl.float32), TOKENS)
            totals = _repeat(tl.full((GROUPS,), 0.0, dtype=tl.float32), TOKENS)
            for line in tl.static_range(4):
                for portion in tl.static_range(2 // subs):
                    word = words_of(lines, scale_words, group[:, None], line, sub + portion, inside, LAYOUT)
                    first_col = group * 32 + (16 * (sub + portion) + 4 * line)
                    quads = ()
                    for token in tl.static_range(TOKENS):
                        quads = quads + (_quad(rows_x[token], first_col, has_group),)
                    for byte in tl.static_range(4):
                        weight = _code(word, byte, LAYOUT.code_bits)
                        new_parts = ()
                        new_totals = ()
                        for token in tl.static_range(TOKENS):
                            value_x = quads[token][byte]
                            product = weight * (value_x * _factor(byte))[:, None]
                            new_parts = new_parts + (parts[token] + product,)
                            new_totals = new_totals + (totals[token] + value_x,)
                        parts = new_parts
                        totals = new_totals
            scale_parts = scale * 2.0**53
            new_sums = ()
            for token in tl.static_range(TOKENS):
                # fma is explicit: the compiler's own contraction might round differently for different tokens.
                total = tl.fma(totals[token][:, None], rest, sums[token])
                new_sums = new_sums + (tl.fma(parts[token], scale_parts, total),)
            sums = new_sums
    _reduce(sums, places, kept, out, gate, partial, arrived, num_splits, split_stride, HAS_GATE, IS_SPLIT, TOKENS)


@triton.jit(do_not_specialize=_RUN_TIME)
def float_gemv(
    x,
    values,  # the panels, seen as their floats
    out,
    gate,
    partial,
    arrived,
    order,
    tiles,
    num_tokens,
    num_slots,
    sharing,
    num_rows,
    cols,
    panels_per_slot,
    panel_size,  # in floats
    steps_per_split,
    num_splits,
    split_stride,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP_COLS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """As `quantized_gemv`, for panels of floats, [cols, 16 rows]."""
    wait_for_previous()
    slot = _slot(tiles, IS_GROUPED)
    row, has_row, begin = rows_of(slot, panels_per_slot, panel_size, ROWS)
    rows_x, places, kept = _tokens(
        x, order, tiles, num_tokens, num_slots, sharing, slot, row, num_rows, cols, IS_GROUPED, TOKENS
    )
    row_values = values + (begin + row % 16)[None, :]
    sums = _repeat(tl.full((STEP_COLS, ROWS), 0.0, dtype=tl.float32), TOKENS)
    first, end = steps_of(tl.program_id(2), steps_per_split, slot, IS_GROUPED)
    for step in range(first, end):
        col = step * STEP_COLS + tl.arange(0, STEP_COLS)
        has_col = col < cols
        inside = has_col[:, None] & has_row[None, :]
        weight = tl.load(row_values + col[:, None] * 16, mask=inside, other=0.0).to(tl.float32)
        new_sums = ()
        for token in tl.static_range(TOKENS):
            value_x = tl.load(rows_x[token] + col, mask=has_col, other=0.0)
            new_sums = new_sums + (sums[token] + weight * value_x[:, None],)
        sums = new_sums
    _reduce(sums, places, kept, out, gate, partial, arrived, num_splits, split_stride, HAS_GATE, IS_SPLIT, TOKENS)
