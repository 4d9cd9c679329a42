"""Triton kernels that turn float32 numbers into two bfloat16 terms: the number rounded, and what that left.

Tensor cores multiply bfloat16 at several times the rate of anything wider, and it has float32's range, so that nothing
needs a scale. Triton's interpreter multiplies no bfloat16: terms are kept as float32 there, and kernels store whatever
type they find.

Triton's built-in operations only, as in tile_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.decode_kernels import lines_of, scales_of, weight_of, words_of


@triton.jit
def rounded(value):
    """The nearest number that bfloat16 has, as float32."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def split_terms(
    x,  # float32 [num_rows, cols]
    terms,  # [rows, PARTS, room]
    cols,
    room,
    LINES: tl.constexpr,
    STEP_COLS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """x as its upper and its lower terms, and with PARTS = 3 the upper ones again. Columns come in the order in which
    `quantized_tiles` takes them: of a step first those of every word's first code, then of its second; LINES = 0 keeps
    the order. Grid: rows, steps."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, STEP_COLS)
    if LINES > 0:
        piece = place // LINES
        line = place % LINES
        col = line // 4 * 32 + piece // 4 * 16 + line % 4 * 4 + piece % 4
    else:
        col = place
    start = tl.program_id(1) * STEP_COLS
    value = tl.load(x + row * cols + start + col, mask=start + col < cols, other=0.0)
    upper = rounded(value)
    place = terms + row * (PARTS * room) + start + place
    tl.store(place, upper)
    tl.store(place + room, value - upper)
    if PARTS == 3:
        tl.store(place + 2 * room, upper)


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def expand_panels(
    words,
    halves,
    codes,
    terms,  # [num_rows, 3, room]
    first_row,
    num_rows,
    cols,
    panel_words,
    scale_words,
    room,
    LAYOUT: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Rows first_row … of a matrix as their upper terms, the upper ones again, and the lower ones, columns ordered as
    in `split_terms`: with its three parts, the products that count. Grid: blocks of rows, steps of columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begin = ((first_row + row) // 16).to(tl.int64) * panel_words
    lane = (first_row + row) % 16
    row_words, row_halves, row_codes = lines_of(words, halves, codes, begin[:, None], lane[:, None])
    index = tl.arange(0, GROUPS * 4)
    line = index % 4
    group = tl.program_id(1) * GROUPS + index // 4
    inside = (row < num_rows)[:, None] & (group < cols // 32)[None, :]
    at = (scale_words + group * (LAYOUT.bits * 16))[None, :]
    row_terms = terms + row.to(tl.int64)[:, None] * (3 * room) + tl.program_id(1) * (GROUPS * 32) + index[None, :]
    for half in tl.static_range(2):
        scale, rest = scales_of(row_halves, row_codes, group[None, :] // 8, group[None, :] % 8, half, inside, LAYOUT)
        word = words_of(row_words, at, line[None, :], half, inside, LAYOUT)
        for byte in tl.static_range(4):
            weight = weight_of(word, byte, scale, rest, LAYOUT)
            upper = rounded(weight)
            place = row_terms + (half * 4 + byte) * (GROUPS * 4)
            tl.store(place, upper, mask=(row < num_rows)[:, None])
            tl.store(place + room, upper, mask=(row < num_rows)[:, None])
            tl.store(place + 2 * room, weight - upper, mask=(row < num_rows)[:, None])
