"""Triton kernels that multiply decoded experts with the tokens that selected them, for steps of thousands of tokens.

An expert's weights are decoded to memory once and then multiplied with all of its tokens; `dequant_gemm_kernels.py`
would decode them again for every tile of tokens. Numbers are rounded to half precision (half_kernels.py). A pair is a
token and one of its selected experts; pairs are sorted by expert. Programs process one tile after another, because only
the device knows the number of tiles.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.dequant_kernels import factor_of, lines_of, scales_of, weight_of, words_of
from ballast.model.hybrid.panels.half_kernels import SCALE, half_of
from ballast.model.hybrid.panels.program_kernels import unit_of
from ballast.model.hybrid.shared_kernels.number_kernels import ceil_div


@triton.jit(do_not_specialize=["first_row", "num_rows", "row_place", "slot_rows"])
def decode_rows(
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    points,  # int32, of the type's grid, or unused
    scales,  # float32, of each slot's matrix, or unused
    decoded,  # float16 [decoded rows, padded_cols]
    first_row,
    num_rows,
    row_place,
    slot_rows,
    cols,
    panel_words,
    scale_words,
    padded_cols,
    LAYOUT: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_STEP: tl.constexpr,
):
    """Decode rows first_row …, times SCALE, row r to row ROW_STEP * r + row_place, with columns in the order of
    `round_to_half`. Grid: steps of columns, blocks of rows, so that data written at the same time is adjacent."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    begin = ((first_row + row) // 16).to(tl.int64) * panel_words
    lane = (first_row + row) % 16
    slot = tl.minimum(first_row + row, first_row + num_rows - 1) // slot_rows
    factor = factor_of(scales, slot[:, None], LAYOUT)
    lines = lines_of(words, halves, codes, points, factor, begin[:, None], lane[:, None])
    group = (tl.program_id(0) * GROUPS + tl.arange(0, GROUPS))[None, :]
    kept = (row < num_rows)[:, None]
    inside = kept & (group < cols // 32)
    target = (row * ROW_STEP + row_place).to(tl.int64)[:, None] * padded_cols
    target = decoded + target + tl.program_id(0) * (GROUPS * 32) + tl.arange(0, GROUPS * 4)[None, :]
    for half in tl.static_range(2):
        scale, rest = scales_of(lines, scale_words, group, half, inside, LAYOUT)
        scale, rest = scale * SCALE, rest * SCALE
        first = words_of(lines, scale_words, group, 0, half, inside, LAYOUT)
        second = words_of(lines, scale_words, group, 1, half, inside, LAYOUT)
        third = words_of(lines, scale_words, group, 2, half, inside, LAYOUT)
        fourth = words_of(lines, scale_words, group, 3, half, inside, LAYOUT)
        for byte in tl.static_range(4):
            # A group's four lines are stored next to each other.
            outer = tl.join(weight_of(first, byte, scale, rest, LAYOUT), weight_of(third, byte, scale, rest, LAYOUT))
            inner = tl.join(weight_of(second, byte, scale, rest, LAYOUT), weight_of(fourth, byte, scale, rest, LAYOUT))
            weight = tl.reshape(tl.join(outer, inner), (ROWS, GROUPS * 4))
            tl.store(target + (half * 4 + byte) * (GROUPS * 4), weight.to(tl.float16), mask=kept)


@triton.jit
def _num_tiles(begins, first, num_experts, row_tiles, BLOCK: tl.constexpr):
    """Number of tiles of experts first … first + num_experts - 1."""
    total = 0
    for index in range(num_experts):
        count = tl.load(begins + first + index + 1) - tl.load(begins + first + index)
        total += ceil_div(count, BLOCK) * row_tiles
    return total


@triton.jit
def _expert_of(tile, begins, first, num_experts, row_tiles, BLOCK: tl.constexpr):
    """(the tile's expert, counted from the first expert; the expert's first tile; its number of tiles)."""
    before = 0
    expert = 0
    own_first = 0
    own_tiles = 1
    for index in range(num_experts):
        count = tl.load(begins + first + index + 1) - tl.load(begins + first + index)
        pair_tiles = ceil_div(count, BLOCK)
        is_own = (tile >= before) & (tile < before + pair_tiles * row_tiles)
        expert = tl.where(is_own, index, expert)
        own_first = tl.where(is_own, before, own_first)
        own_tiles = tl.where(is_own, pair_tiles, own_tiles)
        before += pair_tiles * row_tiles
    return expert, own_first, own_tiles


@triton.jit
def _product(left, right, num_cols, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """[BLOCK, ROWS], the product of rows at left [BLOCK, COLS] and right [COLS, ROWS]."""
    sums = tl.full((BLOCK, ROWS), 0.0, dtype=tl.float32)
    for col in range(0, num_cols, COLS):
        sums = tl.dot(tl.load(left + col), tl.load(right + col), sums)
    return sums


@triton.jit(do_not_specialize=["first", "num_experts", "sharing", "first_bias"])
def gated_pairs(
    x,  # float16 [T, padded_cols], as `round_to_half` orders them
    order,  # int32 [pairs], sorted by expert
    begins,  # int32 [experts + 1], where each expert's pairs begin
    weights,  # [num_experts, num_rows, padded_cols], gate's and up's rows alternating, as `decode_rows` writes them
    hidden,  # float16 [pairs of the experts, hidden_cols], as x
    first,
    num_experts,
    sharing,
    num_rows,
    padded_cols,
    hidden_cols,
    gate_bias,  # float32 [any experts, num_rows / 2], if HAS_BIASES
    up_bias,
    first_bias,  # the row of expert `first` in the biases
    alpha,  # of the unit
    limit,
    LINES: tl.constexpr,
    UNIT: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """hidden = silu(gate x) * up x, or the unit of both with their biases, for the pairs of experts first … first +
    num_experts - 1. Any grid."""
    row_tiles = ceil_div(num_rows, ROWS)
    col = tl.arange(0, COLS)
    base = tl.load(begins + first)
    for tile in range(tl.program_id(0), _num_tiles(begins, first, num_experts, row_tiles, BLOCK), tl.num_programs(0)):
        expert, own_first, own_tiles = _expert_of(tile, begins, first, num_experts, row_tiles, BLOCK)
        begin = tl.load(begins + first + expert)
        end = tl.load(begins + first + expert + 1)
        place = begin + (tile - own_first) % own_tiles * BLOCK + tl.arange(0, BLOCK)
        row = (tile - own_first) // own_tiles * ROWS + tl.arange(0, ROWS)
        # Entries beyond the end are computed from the last one and not stored.
        token = tl.load(order + tl.minimum(place, end - 1)) // sharing
        left = x + token.to(tl.int64)[:, None] * padded_cols + col[None, :]
        of_row = expert.to(tl.int64) * num_rows + tl.minimum(row, num_rows - 1)
        right = weights + of_row[None, :] * padded_cols + col[:, None]
        sums = _product(left, right, padded_cols, BLOCK, ROWS, COLS)
        gate, up = tl.split(tl.reshape(sums, (BLOCK, ROWS // 2, 2)))
        own_col = (tile - own_first) // own_tiles * (ROWS // 2) + tl.arange(0, ROWS // 2)
        if HAS_BIASES:
            of_bias = (first_bias + expert).to(tl.int64) * (num_rows // 2) + own_col
            gate += tl.load(gate_bias + of_bias, mask=own_col < num_rows // 2, other=0.0)[None, :]
            up += tl.load(up_bias + of_bias, mask=own_col < num_rows // 2, other=0.0)[None, :]
        value = unit_of(gate, up, alpha, limit, UNIT)
        within = own_col % (8 * LINES)
        line = within // 32 * 4 + within % 16 // 4
        piece = within % 32 // 16 * 4 + within % 4
        target = hidden + (place - base).to(tl.int64)[:, None] * hidden_cols
        target = target + (own_col - within + piece * LINES + line)[None, :]
        kept = (place < end)[:, None] & (own_col < num_rows // 2)[None, :]
        tl.store(target, half_of(value), mask=kept)


@triton.jit(do_not_specialize=["first", "expert", "num_experts", "num_tokens", "sharing", "first_bias"])
def add_pairs(
    hidden,  # as `gated_pairs` writes it
    order,  # as above
    begins,
    shares,  # float32 [pairs], each pair's weight
    weights,  # float16 [num_experts, num_rows, hidden_cols], the experts' rows of down
    sums,  # float32 [num_experts or more, T, num_rows]
    first,  # the expert with whose pairs `hidden` begins
    expert,
    num_experts,
    num_tokens,
    sharing,
    num_rows,
    hidden_cols,
    bias,  # float32 [any experts, num_rows], if HAS_BIAS
    first_bias,  # the row of `expert` in the biases
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """sums[i] += share * (down hidden + bias) for the pairs of expert + i, i below num_experts: each expert has its own
    sums, so that no two programs add to the same one. Any grid."""
    row_tiles = ceil_div(num_rows, ROWS)
    col = tl.arange(0, COLS)
    base = tl.load(begins + first)
    for tile in range(tl.program_id(0), _num_tiles(begins, expert, num_experts, row_tiles, BLOCK), tl.num_programs(0)):
        index, own_first, own_tiles = _expert_of(tile, begins, expert, num_experts, row_tiles, BLOCK)
        begin = tl.load(begins + expert + index)
        end = tl.load(begins + expert + index + 1)
        place = begin + (tile - own_first) % own_tiles * BLOCK + tl.arange(0, BLOCK)
        row = (tile - own_first) // own_tiles * ROWS + tl.arange(0, ROWS)
        own_place = tl.minimum(place, end - 1)
        left = hidden + (own_place - base).to(tl.int64)[:, None] * hidden_cols + col[None, :]
        of_row = index.to(tl.int64) * num_rows + tl.minimum(row, num_rows - 1)
        right = weights + of_row[None, :] * hidden_cols + col[:, None]
        products = _product(left, right, hidden_cols, BLOCK, ROWS, COLS)
        if HAS_BIAS:
            of_bias = (first_bias + index).to(tl.int64) * num_rows + row
            products += tl.load(bias + of_bias, mask=row < num_rows, other=0.0)[None, :]
        pair = tl.load(order + own_place)
        share = tl.load(shares + pair)
        token = index.to(tl.int64) * num_tokens + pair // sharing
        target = sums + token[:, None] * num_rows + row[None, :]
        kept = (place < end)[:, None] & (row < num_rows)[None, :]
        tl.store(target, tl.load(target, mask=kept, other=0.0) + share[:, None] * products, mask=kept)
