"""Triton kernels that multiply packed weights, decoded in registers, with tiles of tokens on tensor cores.

A program takes some panels of one slot (a head, or an expert) and a tile of tokens, and walks a share of the columns.
The order of sums depends on the matrix and the tile's size alone, so a token's result does not depend on the others.
Numbers are two terms each (term_kernels.py): three products for one, without the two small terms'.

Triton's built-in operations only: its own library of kernels (tl.zeros, tl.cdiv) is compiled when it is imported, and
cannot be interpreted then.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.decode_kernels import lines_of, scales_of, weight_of, words_of
from ballast.model.hybrid.panels.program_kernels import steps_of, store
from ballast.model.hybrid.panels.term_kernels import rounded

_RUN_TIME = ["num_tokens", "num_slots", "sharing", "panels_per_slot", "steps_per_split", "split_stride"]
"""No kernel is compiled for values of these: batch sizes and shapes share one."""


@triton.jit
def _multiply(sums, weight, terms, room, has_token):
    """sums [ROWS, BLOCK_T] + weight [ROWS, K] · x, read as terms [K, BLOCK_T]."""
    term = terms.dtype.element_ty
    upper = rounded(weight)
    lower = (weight - upper).to(term)
    upper = upper.to(term)
    upper_x = tl.load(terms, mask=has_token[None, :], other=0.0)
    lower_x = tl.load(terms + room, mask=has_token[None, :], other=0.0)
    sums = tl.dot(lower, upper_x, sums, input_precision="ieee")
    sums = tl.dot(upper, lower_x, sums, input_precision="ieee")
    return tl.dot(upper, upper_x, sums, input_precision="ieee")


@triton.jit
def _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED: tl.constexpr, BLOCK_T: tl.constexpr):
    """(slot, split, row of x, row of the result, which of them there are) of the program's tokens. Grouped: `tiles`
    [tiles, 3] holds a tile's slot and bounds in `order`; `sharing` results have one row of x. Otherwise slots are
    heads, of which every token has all."""
    if IS_GROUPED:
        tile = tiles + 3 * tl.program_id(1)
        slot = tl.load(tile)
        split = tl.program_id(2)
        place = tl.load(tile + 1) + tl.arange(0, BLOCK_T)
        has_token = place < tl.load(tile + 2)
        result = tl.load(order + place, mask=has_token, other=0).to(tl.int64)
        x_row = result // sharing
    else:
        slot = tl.program_id(2) % num_slots
        split = tl.program_id(2) // num_slots
        token = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
        has_token = token < num_tokens
        result = token.to(tl.int64) * num_slots + slot
        x_row = result
    return slot, split, x_row, result, has_token


@triton.jit(do_not_specialize=_RUN_TIME)
def quantized_tiles(
    terms,  # [x_rows, 2, room], as split_terms orders them
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    out,  # float32 [splits, results, num_rows]
    gate,  # float32 [results, num_rows], or anything
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
    room,
    steps_per_split,
    split_stride,
    LAYOUT: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Grid: blocks of rows, tiles of tokens, splits of the columns times slots where tokens are not grouped."""
    slot, split, x_row, result, has_token = _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED, BLOCK_T)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    panel = row // 16
    has_row = panel < panels_per_slot
    begin = (slot.to(tl.int64) * panels_per_slot + panel) * panel_words
    row_words, row_halves, row_codes = lines_of(words, halves, codes, begin[:, None], (row % 16)[:, None])

    index = tl.arange(0, GROUPS * 4)
    line = index % 4
    row_terms = terms + x_row[None, :] * (2 * room) + index[:, None]
    num_groups = cols // 32
    sums = tl.full((ROWS, BLOCK_T), 0.0, dtype=tl.float32)
    first, end = steps_of(split, steps_per_split, slot, IS_GROUPED)
    for step in range(first, tl.minimum(end, room // (GROUPS * 32))):
        group = step * GROUPS + index // 4
        has_group = group < num_groups
        inside = has_row[:, None] & has_group[None, :]
        at = (scale_words + group * (LAYOUT.bits * 16))[None, :]
        for half in tl.static_range(2):
            scale, rest = scales_of(
                row_halves, row_codes, group[None, :] // 8, group[None, :] % 8, half, inside, LAYOUT
            )
            word = words_of(row_words, at, line[None, :], half, inside, LAYOUT)
            for byte in tl.static_range(4):
                weight = weight_of(word, byte, scale, rest, LAYOUT)
                piece = (step * 8 + half * 4 + byte) * (GROUPS * 4)
                sums = _multiply(sums, weight, row_terms + piece, room, has_token)

    place = result[None, :] * num_rows + row[:, None]
    store(sums, out + split * split_stride, gate, place, (row < num_rows)[:, None] & has_token[None, :], HAS_GATE)


@triton.jit(do_not_specialize=_RUN_TIME)
def float_tiles(
    terms,  # [x_rows, 2, room], in the order of the columns
    values,  # the panels, seen as their floats
    out,  # as above, and so on
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
    room,
    steps_per_split,
    split_stride,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    STEP_COLS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    slot, split, x_row, result, has_token = _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED, BLOCK_T)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    panel = row // 16
    has_row = panel < panels_per_slot
    row_values = values + ((slot.to(tl.int64) * panels_per_slot + panel) * panel_size + row % 16)[:, None]

    index = tl.arange(0, STEP_COLS)
    row_terms = terms + x_row[None, :] * (2 * room) + index[:, None]
    sums = tl.full((ROWS, BLOCK_T), 0.0, dtype=tl.float32)
    first, end = steps_of(split, steps_per_split, slot, IS_GROUPED)
    for step in range(first, tl.minimum(end, room // STEP_COLS)):
        col = step * STEP_COLS + index
        weight = tl.load(row_values + col[None, :] * 16, mask=has_row[:, None] & (col < cols)[None, :], other=0.0)
        sums = _multiply(sums, weight.to(tl.float32), row_terms + step * STEP_COLS, room, has_token)

    place = result[None, :] * num_rows + row[:, None]
    store(sums, out + split * split_stride, gate, place, (row < num_rows)[:, None] & has_token[None, :], HAS_GATE)
