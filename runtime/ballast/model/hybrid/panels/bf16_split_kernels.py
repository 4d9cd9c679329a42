"""Triton kernels that split float32 numbers into two bfloat16 terms: the rounded number, and the remainder.

Tensor cores multiply bfloat16 several times faster than any wider type, and bfloat16 has the range of float32, so no
scale is needed. Triton's interpreter does not multiply bfloat16: there, terms are stored as float32, because kernels
store the type of the memory that they are given.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.dequant_kernels import codes_of, factor_of, lines_of, weight_of


@triton.jit
def rounded(value):
    """The nearest bfloat16 number, as float32. NaN may become zero, but the remainder, `value - rounded(value)`, is NaN
    then."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def split_bf16(
    x,  # float32 [num_rows, cols]
    terms,  # [rows, PARTS, padded_cols]
    cols,
    padded_cols,
    LINES: tl.constexpr,
    STEP_COLS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Split x into its upper terms and its lower terms, followed by the upper terms again if PARTS = 3.

    Columns are stored in the order in which `quantized_gemm` reads them: for each step, first the columns of every
    word's first code, then those of its second, and so on; LINES = 0 keeps their order. Grid: rows, steps."""
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
    place = terms + row * (PARTS * padded_cols) + start + place
    tl.store(place, upper)
    tl.store(place + padded_cols, value - upper)
    if PARTS == 3:
        tl.store(place + 2 * padded_cols, upper)


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def dequantize_panels(
    words,
    halves,
    codes,
    points,
    scales,  # float32 [1], of the matrix, or unused
    terms,  # [num_rows, 3, padded_cols]
    first_row,
    num_rows,
    cols,
    panel_words,
    scale_words,
    padded_cols,
    LAYOUT: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Decode rows first_row … of a matrix to their upper terms, the upper terms again, and the lower terms, with
    columns in the order of `split_bf16`. One product over the three parts is the sum of the three significant products
    of terms. Grid: blocks of rows, steps of columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begin = ((first_row + row) // 16).to(tl.int64) * panel_words
    lane = (first_row + row) % 16
    lines = lines_of(words, halves, codes, points, factor_of(scales, 0, LAYOUT), begin[:, None], lane[:, None])
    index = tl.arange(0, GROUPS * 4)
    line = index % 4
    group = tl.program_id(1) * GROUPS + index // 4
    inside = (row < num_rows)[:, None] & (group < cols // 32)[None, :]
    row_terms = (
        terms + row.to(tl.int64)[:, None] * (3 * padded_cols) + tl.program_id(1) * (GROUPS * 32) + index[None, :]
    )
    for half in tl.static_range(2):
        word, scale, rest = codes_of(lines, scale_words, group[None, :], line[None, :], half, inside, LAYOUT)
        for byte in tl.static_range(4):
            weight = weight_of(word, byte, scale, rest, LAYOUT)
            upper = rounded(weight)
            place = row_terms + (half * 4 + byte) * (GROUPS * 4)
            tl.store(place, upper, mask=(row < num_rows)[:, None])
            tl.store(place + padded_cols, upper, mask=(row < num_rows)[:, None])
            tl.store(place + 2 * padded_cols, weight - upper, mask=(row < num_rows)[:, None])
