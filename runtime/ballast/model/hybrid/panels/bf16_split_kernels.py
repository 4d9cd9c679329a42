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

from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous


@triton.jit
def rounded(value):
    """The nearest bfloat16 number, as float32. NaN may become zero, but the remainder, `value - rounded(value)`, is NaN
    then."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def split_bf16(
    x,  # float32 [num_rows, cols]
    terms,  # [rows, 2, padded_cols]
    cols,
    padded_cols,
    STEP_COLS: tl.constexpr,
):
    """Split x into its upper terms and its lower terms, zeros beyond its columns. Grid: rows, steps."""
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * STEP_COLS + tl.arange(0, STEP_COLS)
    value = tl.load(x + row * cols + col, mask=col < cols, other=0.0)
    upper = rounded(value)
    place = terms + row * (2 * padded_cols) + col
    tl.store(place, upper)
    tl.store(place + padded_cols, value - upper)
