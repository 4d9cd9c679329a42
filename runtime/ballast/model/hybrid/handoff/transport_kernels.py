"""Triton kernels that copy activations to host memory and results back: one launch per direction instead of four
copies.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_pairs"])
def send(
    x,  # float32 [values]
    ids,  # int32 [pairs], at most as many as values
    weights,  # float32 [pairs]
    to_x,  # pinned host memory, as the next two
    to_ids,
    to_weights,
    num_values,
    num_pairs,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_value = at < num_values
    is_pair = at < num_pairs
    tl.store(to_x + at, tl.load(x + at, mask=is_value, other=0.0), mask=is_value)
    tl.store(to_ids + at, tl.load(ids + at, mask=is_pair, other=0), mask=is_pair)
    tl.store(to_weights + at, tl.load(weights + at, mask=is_pair, other=0.0), mask=is_pair)


@triton.jit
def fetch(
    results,  # float32 [values], pinned host memory
    out,
    num_values,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_value = at < num_values
    tl.store(out + at, tl.load(results + at, mask=is_value, other=0.0), mask=is_value)
