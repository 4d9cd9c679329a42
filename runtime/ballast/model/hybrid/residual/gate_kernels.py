"""Triton kernels of a residual stream whose rows are read through gates; see gated.py.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import sigmoid, silu
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus


@triton.jit
def add_to_rows(
    rows,  # float32 [T, ROWS, WIDTH], replaced
    first,  # float32 [T, WIDTH], what is added
    second,  # the same; a further part, if HAS_SECOND
    products,  # float32 [T, ROWS], tokens STRIDE apart
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    HAS_SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """rows[i] += 2 · sigmoid(products[i] / ROWS) · added. Grid: tokens, blocks of columns."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < WIDTH
    added = tl.load(first + token * WIDTH + column, mask=is_there, other=0.0)
    if HAS_SECOND:
        added += tl.load(second + token * WIDTH + column, mask=is_there, other=0.0)
    for row in tl.static_range(ROWS):
        weight = 2.0 * sigmoid(tl.load(products + token * STRIDE + row) / ROWS)
        at = rows + (token * ROWS + row) * WIDTH + column
        tl.store(at, tl.load(at, mask=is_there, other=0.0) + weight * added, mask=is_there)


@triton.jit
def norm_rows(
    rows,  # float32 [T, ROWS, WIDTH], replaced if there are PARTS
    first,  # float32 [T, WIDTH], what is added before, if PARTS is 1 or more
    second,  # the same, if PARTS is 2
    products,  # float32 [T, ROWS], tokens STRIDE apart, if there are PARTS
    weight,  # float32 [ROWS, WIDTH]
    normed,  # float32 [T, ROWS, WIDTH]
    eps,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """The RMS norm of each row, after what `add_to_rows` does. Grid: tokens, rows."""
    wait_for_previous()
    token, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = (token * ROWS + row) * WIDTH
    column = tl.arange(0, PADDED_WIDTH)
    is_there = column < WIDTH
    values = tl.load(rows + at + column, mask=is_there, other=0.0)
    if PARTS > 0:
        added = tl.load(first + token * WIDTH + column, mask=is_there, other=0.0)
        if PARTS > 1:
            added += tl.load(second + token * WIDTH + column, mask=is_there, other=0.0)
        values += 2.0 * sigmoid(tl.load(products + token * STRIDE + row) / ROWS) * added
        tl.store(rows + at + column, values, mask=is_there)
    inverse = 1.0 / tl.sqrt(tl.reduce(values * values, 0, plus) / WIDTH + eps)
    factors = tl.load(weight + row * WIDTH + column, mask=is_there, other=0.0)
    tl.store(normed + at + column, values * inverse * factors, mask=is_there)


@triton.jit
def low_units(
    products,  # float32 [T, RANK], tokens STRIDE apart
    low,  # float32 [T, RANK]
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """silu(products / ROWS). Grid: tokens, blocks of columns."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < RANK
    value = tl.load(products + token * STRIDE + column, mask=is_there, other=0.0) / ROWS
    tl.store(low + token * RANK + column, silu(value), mask=is_there)


@triton.jit
def gated_mean(
    normed,  # float32 [T, ROWS, WIDTH]
    gates,  # float32 [T, ROWS, WIDTH]
    mean,  # float32 [T, WIDTH]
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The mean of normed rows times the sigmoid of gates. Grid: tokens, blocks of columns."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < WIDTH
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for row in tl.static_range(ROWS):
        at = (token * ROWS + row) * WIDTH + column
        gate = sigmoid(tl.load(gates + at, mask=is_there, other=0.0))
        total += gate * tl.load(normed + at, mask=is_there, other=0.0)
    tl.store(mean + token * WIDTH + column, total / ROWS, mask=is_there)
