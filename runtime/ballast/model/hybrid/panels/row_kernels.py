"""Triton kernels that multiply packed weights with one to four tokens: no tensor cores, every weight decoded once.

A program takes a block of rows and walks a share of the columns, a tile [groups, rows] at a time: neighbouring rows of
a group's line lie side by side, so that a thread loads sixteen bytes, and a thread has all columns of a group, so that
a scale is applied to their sum. Sums are float32.

Triton's built-in operations only, as in tile_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.decode_kernels import lines_of, scales_of, words_of
from ballast.model.hybrid.panels.program_kernels import steps_of, store

_RUN_TIME = ["num_tokens", "num_slots", "sharing", "panels_per_slot", "steps_per_split", "num_splits", "split_stride"]
"""No kernel is compiled for values of these: batch sizes and shapes share one."""


@triton.jit
def _code(word, byte: tl.constexpr, BITS: tl.constexpr):
    """The code in the low bits of a byte as a float, times 2^-149 and what `_factor` takes away. A float of at most 24
    bits and no exponent is that integer times 2^-149: a mask alone decodes, and products are normal numbers again."""
    if byte == 3:
        value = (word >> 8) & (((1 << BITS) - 1) << 16)
    else:
        value = word & (((1 << BITS) - 1) << (8 * byte))
    return value.to(tl.float32, bitcast=True)


@triton.jit
def _factor(byte: tl.constexpr):
    """What an activation is multiplied with, so that its product with such a code is 2^-53 times what it stands for."""
    return 2.0**96 if byte == 0 else 2.0**88 if byte == 1 else 2.0**80


@triton.jit
def _token(order, tiles, num_tokens, num_slots, slot, sharing, index: tl.constexpr, IS_GROUPED: tl.constexpr):
    """(row of x, row of the result, whether there is one) of the program's token `index`; the first of each where there
    is none."""
    if IS_GROUPED:
        tile = tiles + 3 * tl.program_id(1)
        place = tl.load(tile + 1) + index
        is_here = place < tl.load(tile + 2)
        result = tl.load(order + place, mask=is_here, other=0)
        x_row = result // sharing
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
    row,
    num_rows,
    cols,
    IS_GROUPED: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """(slot, rows of x, places of the rows' results, which of them there are), the last three of each token."""
    if IS_GROUPED:
        slot = tl.load(tiles + 3 * tl.program_id(1))
    else:
        slot = tl.program_id(1)
    rows_x = ()
    places = ()
    kept = ()
    for token in tl.static_range(TOKENS):
        x_row, result, is_here = _token(order, tiles, num_tokens, num_slots, slot, sharing, token, IS_GROUPED)
        rows_x = rows_x + (x + x_row * cols,)
        places = places + (result * num_rows + row,)
        kept = kept + ((row < num_rows) & is_here,)
    return slot, rows_x, places, kept


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
    """Add up each token's tile. Of several programs that share the columns, the last to arrive adds up what all have
    left, in their order, so that the result does not depend on theirs."""
    if IS_SPLIT:
        for token in tl.static_range(TOKENS):
            own = partial + tl.program_id(2) * split_stride
            tl.store(own + places[token], tl.reduce(sums[token], 0, tl.standard._sum_combine), mask=kept[token])
        tl.debug_barrier()
        counter = arrived + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(counter, 1) == num_splits - 1:
            for token in tl.static_range(TOKENS):
                left = partial + places[token]
                total = tl.load(left, mask=kept[token], other=0.0, cache_modifier=".cg")
                for split in range(1, num_splits):
                    total += tl.load(left + split * split_stride, mask=kept[token], other=0.0, cache_modifier=".cg")
                store(total, out, gate, places[token], kept[token], HAS_GATE)
            tl.store(counter, 0)
    else:
        for token in tl.static_range(TOKENS):
            total = tl.reduce(sums[token], 0, tl.standard._sum_combine)
            store(total, out, gate, places[token], kept[token], HAS_GATE)


@triton.jit(do_not_specialize=_RUN_TIME)
def quantized_rows(
    x,  # float32 [x_rows, cols]
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    out,  # float32 [results, num_rows]
    gate,  # float32 [results, num_rows], or anything
    partial,  # float32 [splits, results, num_rows], or anything
    arrived,  # int32, zeros, one a block of rows and tile (or slot)
    order,  # int32, and
    tiles,  # int32 [tiles, 3], of grouped tokens, or anything
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
    """Grid: blocks of rows, tiles of tokens (or slots), splits of the columns. The last program of a block's splits to
    arrive adds up what all have left, in their order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot, rows_x, places, kept = _tokens(
        x, order, tiles, num_tokens, num_slots, sharing, row, num_rows, cols, IS_GROUPED, TOKENS
    )
    panel = row // 16
    begin = (slot.to(tl.int64) * panels_per_slot + panel) * panel_words
    row_words, row_halves, row_codes = lines_of(words, halves, codes, begin[None, :], (row % 16)[None, :])
    has_row = panel < panels_per_slot
    num_groups = cols // 32
    subs: tl.constexpr = LAYOUT.subs_per_group
    sums = _repeat(tl.full((GROUPS, ROWS), 0.0, dtype=tl.float32), TOKENS)
    first, end = steps_of(tl.program_id(2), steps_per_split, slot, IS_GROUPED)
    for step in range(first, end):
        group = step * GROUPS + tl.arange(0, GROUPS)
        has_group = group < num_groups
        inside = has_group[:, None] & has_row[None, :]
        at = (scale_words + group * (LAYOUT.bits * 16))[:, None]
        for sub in tl.static_range(subs):
            scale, rest = scales_of(row_halves, row_codes, group[:, None] // 8, group[:, None] % 8, sub, inside, LAYOUT)
            parts = _repeat(tl.full((GROUPS, ROWS), 0.0, dtype=tl.float32), TOKENS)
            totals = _repeat(tl.full((GROUPS,), 0.0, dtype=tl.float32), TOKENS)
            for line in tl.static_range(4):
                for portion in tl.static_range(2 // subs):
                    word = words_of(row_words, at, line, sub + portion, inside, LAYOUT)
                    for byte in tl.static_range(4):
                        weight = _code(word, byte, LAYOUT.code_bits)
                        col = group * 32 + (16 * (sub + portion) + 4 * line + byte)
                        new_parts = ()
                        new_totals = ()
                        for token in tl.static_range(TOKENS):
                            value_x = tl.load(rows_x[token] + col, mask=has_group, other=0.0)
                            product = weight * (value_x * _factor(byte))[:, None]
                            new_parts = new_parts + (parts[token] + product,)
                            new_totals = new_totals + (totals[token] + value_x,)
                        parts = new_parts
                        totals = new_totals
            scale_parts = scale * 2.0**53
            new_sums = ()
            for token in tl.static_range(TOKENS):
                # Said how: left to the compiler, which product is rounded may differ from token to token.
                total = tl.fma(totals[token][:, None], rest, sums[token])
                new_sums = new_sums + (tl.fma(parts[token], scale_parts, total),)
            sums = new_sums
    _reduce(sums, places, kept, out, gate, partial, arrived, num_splits, split_stride, HAS_GATE, IS_SPLIT, TOKENS)


@triton.jit(do_not_specialize=_RUN_TIME)
def float_rows(
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
    """As `quantized_rows`, of weights [cols, 16 rows] that are floats."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot, rows_x, places, kept = _tokens(
        x, order, tiles, num_tokens, num_slots, sharing, row, num_rows, cols, IS_GROUPED, TOKENS
    )
    panel = row // 16
    has_row = panel < panels_per_slot
    row_values = values + ((slot.to(tl.int64) * panels_per_slot + panel) * panel_size + row % 16)[None, :]
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
