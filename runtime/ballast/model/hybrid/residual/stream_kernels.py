"""Triton kernels of hyper-connections (arXiv 2512.24880). Weights of a token and block: to read each of its ROWS rows,
to add to each, and to mix them, [ROWS, ROWS].

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import sigmoid
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus


@triton.jit
def mix(
    rows,  # float32 [T, ROWS, WIDTH], replaced
    first,  # float32 [T, WIDTH], what is added
    second,  # the same; a further part, if HAS_SECOND
    weights,  # float32 [T, ROWS * (2 + ROWS)]
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """rows[j] = add[j] * added + sum over i of mix[i, j] * rows[i]. Grid: tokens, blocks of columns."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < WIDTH
    added = tl.load(first + token * WIDTH + column, mask=is_there, other=0.0)
    if HAS_SECOND:
        added += tl.load(second + token * WIDTH + column, mask=is_there, other=0.0)
    row = tl.arange(0, ROWS)
    own = weights + token * (ROWS * (2 + ROWS)) + ROWS
    sums = tl.load(own + row)[:, None] * added[None, :]
    at = rows + token * (ROWS * WIDTH) + column
    for source in tl.static_range(ROWS):
        shares = tl.load(own + (1 + source) * ROWS + row)
        sums += shares[:, None] * tl.load(at + source * WIDTH, mask=is_there, other=0.0)[None, :]
    tl.debug_barrier()  # all threads have read the rows that are replaced
    tl.store(at[None, :] + row[:, None] * WIDTH, sums, mask=is_there[None, :])


@triton.jit
def _balanced(shares, eps, ROUNDS: tl.constexpr):
    """Make rows and columns sum to about 1, by Sinkhorn's algorithm."""
    shares = shares / (tl.reduce(shares, 0, plus) + eps)[None, :]
    for _ in range(ROUNDS - 1):
        shares = shares / (tl.reduce(shares, 1, plus) + eps)[:, None]
        shares = shares / (tl.reduce(shares, 0, plus) + eps)[None, :]
    return shares


@triton.jit
def read(
    rows,  # float32 [T, ROWS, WIDTH]
    products,  # float32 [T, ROWS * (2 + ROWS)], of all rows of a token before they are normed
    base,  # float32 [ROWS * (2 + ROWS)]
    scales,  # float32 [3]
    norm,  # float32 [WIDTH]
    weights,  # float32 [T, ROWS * (2 + ROWS)]
    normed,  # float32 [T, WIDTH]
    eps,
    rms_eps,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROUNDS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """Grid: tokens."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, PADDED_WIDTH)
    is_there = column < WIDTH
    at = rows + token * (ROWS * WIDTH) + row[:, None] * WIDTH + column[None, :]
    values = tl.load(at, mask=is_there[None, :], other=0.0)
    squares = tl.reduce(tl.reduce(values * values, 1, plus), 0, plus)
    inverse = 1.0 / tl.sqrt(squares / (ROWS * WIDTH) + rms_eps)

    first = token * (ROWS * (2 + ROWS))
    square = (2 + row[:, None]) * ROWS + row[None, :]
    to_read = sigmoid(tl.load(products + first + row) * inverse * tl.load(scales) + tl.load(base + row)) + eps
    adding = tl.load(products + first + ROWS + row) * inverse * tl.load(scales + 1) + tl.load(base + ROWS + row)
    mixing = tl.load(products + first + square) * inverse * tl.load(scales + 2) + tl.load(base + square)
    shares = tl.exp(mixing - tl.reduce(mixing, 1, larger)[:, None])
    shares = shares / tl.reduce(shares, 1, plus)[:, None] + eps
    tl.store(weights + first + row, to_read)
    tl.store(weights + first + ROWS + row, 2.0 * sigmoid(adding))
    tl.store(weights + first + square, _balanced(shares, eps, ROUNDS))

    total = tl.reduce(values * to_read[:, None], 0, plus)
    own = 1.0 / tl.sqrt(tl.reduce(total * total, 0, plus) / WIDTH + rms_eps)
    factors = tl.load(norm + column, mask=is_there, other=0.0)
    tl.store(normed + token * WIDTH + column, total * own * factors, mask=is_there)
