"""The combine functions of Triton's reductions: `tl.reduce(values, axis, plus)` is a sum.

Kernels use only Triton's built-in operations. Triton's own library (tl.sum, tl.zeros, tl.cdiv) is compiled when it is
imported, and Triton's interpreter, with which the tests run kernels, cannot run it then.
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
