"""Triton kernels that round float32 numbers to half precision for products on tensor cores.

Weights and activations are rounded once, which is far below the error of their quantisation. Half precision has a
narrow range, so activations are divided by SCALE and weights are multiplied by it: activations of up to 262,016 and
weights of up to 16,376 fit, and sums need no correction. Larger finite activations become the largest. The error is at
most 2⁻¹¹ of the number for activations from 2⁻¹² and weights from 2⁻¹⁶, and 2⁻²³ and 2⁻²⁷ for smaller ones.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.dequant_kernels import codes_of, factor_of, lines_of, weight_of
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous

SCALE = tl.constexpr(4.0)
LARGEST = tl.constexpr(65504.0)
"""The largest finite number of half precision."""


@triton.jit
def half_of(value):
    """An activation divided by SCALE, in half precision; finite ones stay finite."""
    value = value * (1.0 / SCALE)
    size = tl.abs(value)
    bound = tl.where(value < 0.0, -LARGEST, LARGEST)
    return tl.where((size > LARGEST) & (size < float("inf")), bound, value).to(tl.float16)


@triton.jit
def scaled_codes_of(lines, scale_words, group, line, half: tl.constexpr, inside, LAYOUT: tl.constexpr):
    """`codes_of`, with scales for weights times SCALE."""
    word, scale, rest = codes_of(lines, scale_words, group, line, half, inside, LAYOUT)
    return word, scale * SCALE, rest * SCALE


@triton.jit
def round_to_half(
    x,  # float32 [num_rows, cols]
    halves,  # float16 [rows, padded_cols]
    cols,
    padded_cols,
    LINES: tl.constexpr,
    STEP_COLS: tl.constexpr,
):
    """halves = `half_of` x, zeros beyond its columns.

    Columns are stored in the order in which `quantized_gemm` reads them: for each step, first the columns of every
    word's first code, then those of its second, and so on. Grid: rows, steps."""
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, STEP_COLS)
    piece = place // LINES
    line = place % LINES
    col = line // 4 * 32 + piece // 4 * 16 + line % 4 * 4 + piece % 4
    start = tl.program_id(1) * STEP_COLS
    value = tl.load(x + row * cols + start + col, mask=start + col < cols, other=0.0)
    tl.store(halves + row * padded_cols + start + place, half_of(value))


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def dequantize_panels(
    words,
    halves,
    codes,
    points,
    scales,  # float32 [1], of the matrix, or unused
    decoded,  # float16 [num_rows, padded_cols]
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
    """Decode rows first_row … of a matrix, times SCALE, with columns in the order of `round_to_half`. Grid: blocks of
    rows, steps of columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begin = ((first_row + row) // 16).to(tl.int64) * panel_words
    lane = (first_row + row) % 16
    lines = lines_of(words, halves, codes, points, factor_of(scales, 0, LAYOUT), begin[:, None], lane[:, None])
    index = tl.arange(0, GROUPS * 4)
    line = index % 4
    group = tl.program_id(1) * GROUPS + index // 4
    inside = (row < num_rows)[:, None] & (group < cols // 32)[None, :]
    target = decoded + row.to(tl.int64)[:, None] * padded_cols + tl.program_id(1) * (GROUPS * 32) + index[None, :]
    for half in tl.static_range(2):
        word, scale, rest = scaled_codes_of(lines, scale_words, group[None, :], line[None, :], half, inside, LAYOUT)
        for byte in tl.static_range(4):
            weight = weight_of(word, byte, scale, rest, LAYOUT)
            tl.store(target + (half * 4 + byte) * (GROUPS * 4), weight.to(tl.float16), mask=(row < num_rows)[:, None])
