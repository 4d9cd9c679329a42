"""Kernels in Triton for expanded attention: they assemble keys, clamp numbers, attend and merge averages.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.number_kernels import bounded, is_beyond
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _clamped(values, LARGEST: tl.constexpr):
    """(values, number of infinite values); NaN stays NaN."""
    wide = values.to(tl.float32)
    return bounded(wide, LARGEST), tl.reduce(tl.reduce(is_beyond(wide, LARGEST), 1, plus), 0, plus)


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
    values, num_beyond = _clamped(tl.load(nope + row * NOPE + of_nope, mask=in_nope, other=0.0), LARGEST)
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
    found, num_beyond = _clamped(tl.load(values + place, mask=is_there, other=0.0), LARGEST)
    if num_beyond > 0:
        tl.store(values + place, found.to(values.dtype.element_ty), mask=is_there)
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def _attend_to(
    sums,
    peak,
    total,
    nope,
    rope,
    keys,
    values,
    first,
    row,
    num_keys,
    key_stride,
    value_stride,
    of_nope,
    of_rope,
    of_value,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    V: tl.constexpr,
    KEYS: tl.constexpr,
    IS_MASKED: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
):
    """(sums, peak, total) after keys first … first + KEYS - 1. IS_MASKED: some rows may not see all of them."""
    key = first + tl.arange(0, KEYS)
    is_there = key < num_keys
    key_row = keys + key.to(tl.int64)[None, :] * key_stride
    key_nope = tl.load(key_row + of_nope[:, None], mask=is_there[None, :] & (of_nope < NOPE)[:, None], other=0.0)
    key_rope = tl.load(key_row + NOPE + of_rope[:, None], mask=is_there[None, :] & (of_rope < ROPE)[:, None], other=0.0)
    scores = tl.dot(nope, key_nope, input_precision="ieee")
    scores = tl.dot(rope, key_rope, scores, input_precision="ieee") * _LOG2_E
    if IS_MASKED:
        is_seen = is_there[None, :]
        if IS_CAUSAL:
            is_seen = is_seen & (key[None, :] <= row[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.reduce(scores, 1, larger))
    fade = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - new_peak[:, None])
    value_row = values + key.to(tl.int64)[:, None] * value_stride + of_value[None, :]
    value = tl.load(value_row, mask=is_there[:, None] & (of_value < V)[None, :], other=0.0)
    sums = tl.dot(weights.to(value.dtype), value, sums * fade[:, None], input_precision="ieee")
    return sums, new_peak, total * fade + tl.reduce(weights, 1, plus)


@triton.jit(do_not_specialize=["num_queries", "num_keys"])
def attend_expanded(
    query,  # [num_queries, heads, NOPE + ROPE], scaled
    keys,  # [num_keys, heads, NOPE + ROPE]
    values,  # [num_keys, heads, V]
    out,  # [num_queries, heads, V]
    weight,  # float32 [num_queries, heads], base-2 logarithms of the sums of weights
    num_queries,
    num_keys,
    num_heads,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    V: tl.constexpr,
    PADDED_NOPE: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    PADDED_V: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
):
    """Each query attends to all keys, or if IS_CAUSAL, when there are as many, to those up to its own; QUERIES is then
    a multiple of KEYS. Grid: blocks of queries, the last ones first because they see most keys, and heads."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    row = block * QUERIES + tl.arange(0, QUERIES)
    has_row = row < num_queries
    of_nope = tl.arange(0, PADDED_NOPE)
    of_rope = tl.arange(0, PADDED_ROPE)
    of_value = tl.arange(0, PADDED_V)
    key_stride = num_heads * (NOPE + ROPE)
    value_stride = num_heads * V
    own = query + row.to(tl.int64)[:, None] * key_stride + head * (NOPE + ROPE)
    nope = tl.load(own + of_nope[None, :], mask=has_row[:, None] & (of_nope < NOPE)[None, :], other=0.0)
    rope = tl.load(own + NOPE + of_rope[None, :], mask=has_row[:, None] & (of_rope < ROPE)[None, :], other=0.0)
    keys += head * (NOPE + ROPE)
    values += head * V
    sums = tl.full((QUERIES, PADDED_V), 0.0, dtype=tl.float32)
    peak = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    total = tl.full((QUERIES,), 0.0, dtype=tl.float32)
    end = num_keys
    seen_by_all = num_keys // KEYS * KEYS
    if IS_CAUSAL:
        end = tl.minimum(num_keys, (block + 1) * QUERIES)
        seen_by_all = block * QUERIES
    for part in tl.static_range(2):  # without a mask, then with one
        for first in range(seen_by_all * part, seen_by_all + (end - seen_by_all) * part, KEYS):
            sums, peak, total = _attend_to(
                sums,
                peak,
                total,
                nope,
                rope,
                keys,
                values,
                first,
                row,
                num_keys,
                key_stride,
                value_stride,
                of_nope,
                of_rope,
                of_value,
                NOPE,
                ROPE,
                V,
                KEYS,
                part == 1,
                IS_CAUSAL,
            )
    place = row.to(tl.int64) * num_heads + head
    kept = has_row[:, None] & (of_value < V)[None, :]
    averages = sums / total[:, None]
    tl.store(out + place[:, None] * V + of_value[None, :], averages.to(out.dtype.element_ty), mask=kept)
    tl.store(weight + place, peak + tl.log2(total), mask=has_row)


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
