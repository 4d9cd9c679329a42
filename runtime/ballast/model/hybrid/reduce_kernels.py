"""What Triton's reductions combine two values with: `tl.reduce(values, axis, plus)` is a sum.

Kernels use Triton's built-in operations only. Its own library (tl.sum, tl.zeros, tl.cdiv) is compiled when it is
imported, and Triton's interpreter, which the tests run kernels with, cannot run it then.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def plus(left, right):
    return left + right


@triton.jit
def smaller(left, right):
    return tl.minimum(left, right)


@triton.jit
def larger(left, right):
    return tl.maximum(left, right)
