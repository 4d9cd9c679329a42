"""Helper kernels in Triton for expanded attention: they assemble keys, clamp numbers and merge averages.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.reduce_kernels import plus


@triton.jit
def _bounded(values, LARGEST: tl.constexpr):
    """(values, number of infinite values); NaN stays NaN."""
    wide = values.to(tl.float32)
    is_beyond = (wide > LARGEST) | (wide < -LARGEST)
    bounded = tl.where(wide > LARGEST, LARGEST, tl.where(wide < -LARGEST, -LARGEST, wide))
    return bounded, tl.reduce(tl.reduce(is_beyond.to(tl.int32), 1, plus), 0, plus)


@triton.jit
def place_keys(
    nope,  # [keys, heads, NOPE]
    rope,  # [keys, ROPE], rows `rope_stride` apart
    keys,  # [keys, heads, NOPE + ROPE]
    num_saturated,  # int64 []
    rope_stride,
    num_heads,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_NOPE: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    HEADS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Grid: keys, blocks of HEADS heads."""
    key = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    has_head = (head < num_heads)[:, None]
    row = (key * num_heads + head)[:, None]
    of_nope = tl.arange(0, PADDED_NOPE)[None, :]
    in_nope = has_head & (of_nope < NOPE)
    values, num_beyond = _bounded(tl.load(nope + row * NOPE + of_nope, mask=in_nope, other=0.0), LARGEST)
    tl.store(keys + row * (NOPE + ROPE) + of_nope, values.to(keys.dtype.element_ty), mask=in_nope)
    of_rope = tl.arange(0, PADDED_ROPE)
    turned = tl.load(rope + key * rope_stride + of_rope, mask=of_rope < ROPE, other=0.0)
    place = keys + row * (NOPE + ROPE) + NOPE + of_rope[None, :]
    turned = tl.broadcast_to(turned[None, :], (HEADS, PADDED_ROPE))
    tl.store(place, turned, mask=has_head & (of_rope < ROPE)[None, :])
    if num_beyond > 0:
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def bound(
    values,  # [num_values], changed in place
    num_saturated,  # int64 []
    num_values,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Replaces infinite numbers and counts them; finite numbers are not written."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_there = place < num_values
    found, num_beyond = _bounded(tl.load(values + place, mask=is_there, other=0.0), LARGEST)
    if num_beyond > 0:
        tl.store(values + place, found.to(values.dtype.element_ty), mask=is_there)
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def merge(
    total,  # float32 [rows, WIDTH]
    weight,  # float32 [rows], base-2 logarithms
    part,  # [rows, WIDTH]
    part_weight,  # float32 [rows]
    num_rows,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Merge averages over other keys into `total`. Grid: blocks of rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    has_row = row < num_rows
    col = tl.arange(0, PADDED_WIDTH)
    own = tl.load(weight + row, mask=has_row, other=0.0)
    other = tl.load(part_weight + row, mask=has_row, other=0.0)
    peak = tl.maximum(own, other)
    fade = tl.exp2(own - peak)
    gain = tl.exp2(other - peak)
    sum_of_both = fade + gain
    place = row[:, None] * WIDTH + col[None, :]
    kept = has_row[:, None] & (col < WIDTH)[None, :]
    before = tl.load(total + place, mask=kept, other=0.0)
    added = tl.load(part + place, mask=kept, other=0.0).to(tl.float32)
    tl.store(total + place, before * (fade / sum_of_both)[:, None] + added * (gain / sum_of_both)[:, None], mask=kept)
    tl.store(weight + row, peak + tl.log2(sum_of_both), mask=has_row)
