"""Functions of single numbers that Triton kernels share. Triton's built-in operations only: see reduce_kernels.py."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ceil_div(a, b):
    return (a + b - 1) // b


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """max(x, 0) + log(1 + exp(-|x|)), whose logarithm is 2 artanh(s) with s ≤ 1 / 3: `tl.log` is too inexact near 1."""
    small = tl.exp(-tl.abs(x))
    s = small / (2.0 + small)
    squared = s * s
    series = 1.0 / 13.0 + squared * (1.0 / 15.0)
    series = 1.0 / 9.0 + squared * (1.0 / 11.0 + squared * series)
    series = 1.0 / 5.0 + squared * (1.0 / 7.0 + squared * series)
    series = 1.0 + squared * (1.0 / 3.0 + squared * series)
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit
def bounded(value, LARGEST: tl.constexpr):
    """The value between -LARGEST and LARGEST; NaN stays NaN."""
    return tl.where(value > LARGEST, LARGEST, tl.where(value < -LARGEST, -LARGEST, value))


@triton.jit
def is_beyond(value, LARGEST: tl.constexpr):
    """1 for a value that `bounded` changes, else 0."""
    return ((value > LARGEST) | (value < -LARGEST)).to(tl.int32)
