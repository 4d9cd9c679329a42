"""Triton kernels of the pointwise parts of a layer: norms, rotation, cache rows and gates, in a few launches.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.program_kernels import unit_of
from ballast.model.hybrid.pointwise.fp8_kernels import store_short, store_short_head, store_short_parts
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import bounded, is_beyond
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus


@triton.jit
def _inverse_rms(x, width, eps):
    return 1.0 / tl.sqrt(tl.reduce(x * x, 0, plus) / width + eps)


@triton.jit
def add_and_norm(
    stream,  # float32 [T, WIDTH], rows STRIDE apart; the parts are added to it
    first,  # each float32 [T, WIDTH]
    second,
    third,
    weight,  # float32 [WIDTH]
    normed,  # float32 [T, WIDTH]
    eps,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED_WIDTH)
    is_there = column < WIDTH
    at = token * WIDTH + column
    x = tl.load(stream + token * STRIDE + column, mask=is_there, other=0.0)
    if PARTS > 0:
        x += tl.load(first + at, mask=is_there, other=0.0)
    if PARTS > 1:
        x += tl.load(second + at, mask=is_there, other=0.0)
    if PARTS > 2:
        x += tl.load(third + at, mask=is_there, other=0.0)
    if PARTS > 0:
        tl.store(stream + token * STRIDE + column, x, mask=is_there)
    scale = tl.load(weight + column, mask=is_there, other=0.0)
    tl.store(normed + at, x * _inverse_rms(x, WIDTH, eps) * scale, mask=is_there)


@triton.jit
def _angle_of(position, pair, ROPE: tl.constexpr, ROTATES: tl.constexpr):
    """The row of the tables with the pairs of a token; the first row if no position rotates anything."""
    angle = pair.to(tl.int64)
    if ROTATES:
        angle += tl.load(position).to(tl.int64) * (ROPE // 2)
    return angle


@triton.jit
def query_and_cache(
    nope,  # float32 [T, heads, RANK]
    heads,  # float32 [T, heads, HEAD_DIM], tokens HEADS_STRIDE apart; the last ROPE entries are rotated
    latents,  # float32 [T, RANK + ROPE], rows LATENT_STRIDE apart
    weight,  # float32 [RANK]
    positions,  # int32 [T]
    slots,  # int32 [T]
    cos,  # float32 [positions, ROPE / 2]
    sin,
    scales,  # float32 [positions], factors of queries, if HAS_SCALES
    query,  # float32 [T, heads, RANK + ROPE]
    cache,  # [slots, ROW_WIDTH]: latent and rotated key; uint8 if PARTS
    part_scales,  # float32 and bfloat16, the same memory, if PARTS
    ropes,
    num_saturated,  # int64 []
    num_heads,
    eps,
    HAS_SCALES: tl.constexpr,
    ROTATES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS_STRIDE: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT_STRIDE: tl.constexpr,
    ROW_WIDTH: tl.constexpr,
    PARTS: tl.constexpr,  # parts of a latent that share a scale in rows of `ShortRows`; 0: the cache has others
    PADDED_RANK: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    LARGEST: tl.constexpr,  # largest number of the cache's type
    LARGEST_QUERY: tl.constexpr,
):
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, PADDED_RANK)
    is_latent = column < RANK
    pair = tl.arange(0, PADDED_PAIRS)
    is_pair = pair < ROPE // 2
    angle = _angle_of(positions + token, pair, ROPE, ROTATES)
    cosine = tl.load(cos + angle, mask=is_pair, other=0.0)
    sine = tl.load(sin + angle, mask=is_pair, other=0.0)
    if head < num_heads:
        row = token * num_heads + head
        values = tl.load(nope + row * RANK + column, mask=is_latent, other=0.0)
        if HAS_SCALES:
            factor = tl.load(scales + tl.load(positions + token))
            values *= factor
        tl.store(query + row * (RANK + ROPE) + column, bounded(values, LARGEST_QUERY), mask=is_latent)
        rope = heads + token * HEADS_STRIDE + (head + 1) * HEAD_DIM - ROPE + 2 * pair
        even = tl.load(rope, mask=is_pair, other=0.0)
        odd = tl.load(rope + 1, mask=is_pair, other=0.0)
        first = even * cosine - odd * sine
        second = odd * cosine + even * sine
        if HAS_SCALES:
            first *= factor
            second *= factor
        rotated = query + row * (RANK + ROPE) + RANK + 2 * pair
        tl.store(rotated, bounded(first, LARGEST_QUERY), mask=is_pair)
        tl.store(rotated + 1, bounded(second, LARGEST_QUERY), mask=is_pair)
        num_beyond = tl.reduce(is_beyond(values, LARGEST_QUERY), 0, plus)
        num_beyond += tl.reduce(is_beyond(first, LARGEST_QUERY) + is_beyond(second, LARGEST_QUERY), 0, plus)
    else:
        slot = tl.load(slots + token).to(tl.int64) * ROW_WIDTH
        latent = tl.load(latents + token * LATENT_STRIDE + column, mask=is_latent, other=0.0)
        normed = latent * _inverse_rms(latent, RANK, eps) * tl.load(weight + column, mask=is_latent, other=0.0)
        num_beyond = tl.reduce(is_beyond(normed, LARGEST), 0, plus)
        normed = bounded(normed, LARGEST)
        key = latents + token * LATENT_STRIDE + RANK + 2 * pair
        even = tl.load(key, mask=is_pair, other=0.0)
        odd = tl.load(key + 1, mask=is_pair, other=0.0)
        first = even * cosine - odd * sine
        second = odd * cosine + even * sine
        num_beyond += tl.reduce(is_beyond(first, LARGEST) + is_beyond(second, LARGEST), 0, plus)
        if PARTS > 0:
            store_short_parts(normed, cache + slot, part_scales + slot // 4 + RANK // 4, PARTS, RANK // PARTS)
            cached = ropes + slot // 2 + RANK // 2 + 2 * PARTS + 2 * pair
        else:
            tl.store(cache + slot + column, normed.to(cache.dtype.element_ty), mask=is_latent)
            cached = cache + slot + RANK + 2 * pair
        tl.store(cached, bounded(first, LARGEST).to(ropes.dtype.element_ty), mask=is_pair)
        tl.store(cached + 1, bounded(second, LARGEST).to(ropes.dtype.element_ty), mask=is_pair)
    if num_beyond > 0:
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def rotated_query(
    heads,  # float32 [T, heads, NOPE + ROPE], tokens HEADS_STRIDE apart
    positions,  # int32 [T]
    cos,  # float32 [positions, ROPE / 2]
    sin,
    scales,  # float32 [positions], factors of queries, if HAS_SCALES
    query,  # [T, heads, NOPE + ROPE]
    num_saturated,  # int64 []
    scale,
    num_heads,
    HAS_SCALES: tl.constexpr,
    ROTATES: tl.constexpr,
    HEADS_STRIDE: tl.constexpr,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_NOPE: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
    LARGEST_QUERY: tl.constexpr,
):
    """Grid: tokens, blocks of HEADS heads."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    has_head = (head < num_heads)[:, None]
    given = heads + token * HEADS_STRIDE + head[:, None] * (NOPE + ROPE)
    made = query + (token * num_heads + head)[:, None] * (NOPE + ROPE)
    of_nope = tl.arange(0, PADDED_NOPE)[None, :]
    in_nope = has_head & (of_nope < NOPE)
    values = tl.load(given + of_nope, mask=in_nope, other=0.0)
    if HAS_SCALES:
        factor = tl.load(scales + tl.load(positions + token))
        values *= factor
    tl.store(made + of_nope, (bounded(values, LARGEST_QUERY) * scale).to(query.dtype.element_ty), mask=in_nope)
    pair = tl.arange(0, PADDED_PAIRS)[None, :]
    in_pair = has_head & (pair < ROPE // 2)
    angle = _angle_of(positions + token, pair, ROPE, ROTATES)
    cosine = tl.load(cos + angle, mask=pair < ROPE // 2, other=0.0)
    sine = tl.load(sin + angle, mask=pair < ROPE // 2, other=0.0)
    even = tl.load(given + NOPE + 2 * pair, mask=in_pair, other=0.0)
    odd = tl.load(given + NOPE + 2 * pair + 1, mask=in_pair, other=0.0)
    first = even * cosine - odd * sine
    second = odd * cosine + even * sine
    if HAS_SCALES:
        first *= factor
        second *= factor
    tl.store(made + NOPE + 2 * pair, (bounded(first, LARGEST_QUERY) * scale).to(query.dtype.element_ty), mask=in_pair)
    second_place = made + NOPE + 2 * pair + 1
    tl.store(second_place, (bounded(second, LARGEST_QUERY) * scale).to(query.dtype.element_ty), mask=in_pair)
    beyond = tl.reduce(is_beyond(values, LARGEST_QUERY), 1, plus)
    beyond += tl.reduce(is_beyond(first, LARGEST_QUERY) + is_beyond(second, LARGEST_QUERY), 1, plus)
    num_beyond = tl.reduce(beyond, 0, plus)
    if num_beyond > 0:
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def _turned_head(
    head,  # float32 [KEY_DIM], the input
    bias,  # the same, if HAS_BIAS
    norm,  # float32 [KEY_DIM], if HAS_NORM
    cos,  # float32 [ROPE / 2], for the token's position
    sin,
    out,  # [KEY_DIM]
    scale_out,  # float32 [], if IS_SHORT
    eps,
    IS_SHORT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    KEY_DIM: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    PADDED_REST: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Write a head to `out` with its bias, normed, and with its first ROPE entries rotated; returns the number of
    clamped values."""
    pair = tl.arange(0, PADDED_PAIRS)
    is_pair = pair < ROPE // 2
    first = tl.load(head + pair, mask=is_pair, other=0.0)
    second = tl.load(head + ROPE // 2 + pair, mask=is_pair, other=0.0)
    if HAS_BIAS:
        first += tl.load(bias + pair, mask=is_pair, other=0.0)
        second += tl.load(bias + ROPE // 2 + pair, mask=is_pair, other=0.0)
    squares = tl.reduce(first * first + second * second, 0, plus)
    if PADDED_REST > 0:
        of_rest = tl.arange(0, PADDED_REST)
        is_rest = of_rest < KEY_DIM - ROPE
        rest = tl.load(head + ROPE + of_rest, mask=is_rest, other=0.0)
        if HAS_BIAS:
            rest += tl.load(bias + ROPE + of_rest, mask=is_rest, other=0.0)
        squares += tl.reduce(rest * rest, 0, plus)
    if HAS_NORM:
        inverse = 1.0 / tl.sqrt(squares / KEY_DIM + eps)
        first *= inverse * tl.load(norm + pair, mask=is_pair, other=0.0)
        second *= inverse * tl.load(norm + ROPE // 2 + pair, mask=is_pair, other=0.0)
    cosine = tl.load(cos + pair, mask=is_pair, other=0.0)
    sine = tl.load(sin + pair, mask=is_pair, other=0.0)
    turned_first = first * cosine - second * sine
    turned_second = second * cosine + first * sine
    num_beyond = tl.reduce(is_beyond(turned_first, LARGEST) + is_beyond(turned_second, LARGEST), 0, plus)
    turned_first = bounded(turned_first, LARGEST)
    turned_second = bounded(turned_second, LARGEST)
    if PADDED_REST > 0:
        if HAS_NORM:
            rest *= inverse * tl.load(norm + ROPE + of_rest, mask=is_rest, other=0.0)
        num_beyond += tl.reduce(is_beyond(rest, LARGEST), 0, plus)
        rest = bounded(rest, LARGEST)
    else:
        rest, of_rest, is_rest = first, pair, is_pair  # unused
    if IS_SHORT:
        store_short_head(
            turned_first, turned_second, rest, out, scale_out, pair, of_rest, is_pair, is_rest, ROPE, PADDED_REST > 0
        )
    else:
        tl.store(out + pair, turned_first.to(out.dtype.element_ty), mask=is_pair)
        tl.store(out + ROPE // 2 + pair, turned_second.to(out.dtype.element_ty), mask=is_pair)
        if PADDED_REST > 0:
            tl.store(out + ROPE + of_rest, rest.to(out.dtype.element_ty), mask=is_rest)
    return num_beyond


@triton.jit
def heads_and_cache(
    query,  # float32 [T, heads, KEY_DIM], tokens QUERY_STRIDE apart and heads HEAD_STRIDE
    key,  # float32 [T, kv heads, KEY_DIM], tokens KEY_STRIDE apart
    value,  # float32 [T, kv heads, V_DIM], tokens VALUE_STRIDE apart
    query_bias,  # float32 [heads, KEY_DIM], if there is one
    key_bias,
    value_bias,
    query_norm,  # float32 [KEY_DIM], if there is one
    key_norm,
    positions,  # int32 [T]
    slots,  # int32 [T]
    cos,  # float32 [positions, ROPE / 2]
    sin,
    rotated,  # float32 [T, heads, KEY_DIM]
    cache,  # [slots, ROW_WIDTH]: keys by head, then values by head; uint8 if IS_SHORT
    scales,  # float32 [slots, ROW_WIDTH / 4], the same memory, if IS_SHORT
    num_saturated,  # int64 []
    num_heads,
    num_kv_heads,
    eps,
    value_scale,
    IS_SHORT: tl.constexpr,  # whether the cache has rows of `ShortRows`
    QUERY_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    HAS_QUERY_BIAS: tl.constexpr,
    HAS_KEY_BIAS: tl.constexpr,
    HAS_VALUE_BIAS: tl.constexpr,
    HAS_QUERY_NORM: tl.constexpr,
    HAS_KEY_NORM: tl.constexpr,
    KEY_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    ROPE: tl.constexpr,
    ROW_WIDTH: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    PADDED_REST: tl.constexpr,
    PADDED_V: tl.constexpr,
    LARGEST: tl.constexpr,  # largest number of the cache's type
    LARGEST_QUERY: tl.constexpr,
):
    """Grid: tokens, heads (first of queries, then of keys, then of values)."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    angle = tl.load(positions + token).to(tl.int64) * (ROPE // 2)
    slot = tl.load(slots + token).to(tl.int64)
    row = cache + slot * ROW_WIDTH
    # Scales follow the values, keys' before values'.
    scale = scales + slot * (ROW_WIDTH // 4) + num_kv_heads * (KEY_DIM + V_DIM) // 4 + head - num_heads
    if head < num_heads:
        num_beyond = _turned_head(
            query + token * QUERY_STRIDE + head * HEAD_STRIDE,
            query_bias + head * KEY_DIM,
            query_norm,
            cos + angle,
            sin + angle,
            rotated + (token * num_heads + head) * KEY_DIM,
            scales,
            eps,
            False,
            HAS_QUERY_BIAS,
            HAS_QUERY_NORM,
            KEY_DIM,
            ROPE,
            PADDED_PAIRS,
            PADDED_REST,
            LARGEST_QUERY,
        )
    elif head < num_heads + num_kv_heads:
        own = head - num_heads
        num_beyond = _turned_head(
            key + token * KEY_STRIDE + own * KEY_DIM,
            key_bias + own * KEY_DIM,
            key_norm,
            cos + angle,
            sin + angle,
            row + own * KEY_DIM,
            scale,
            eps,
            IS_SHORT,
            HAS_KEY_BIAS,
            HAS_KEY_NORM,
            KEY_DIM,
            ROPE,
            PADDED_PAIRS,
            PADDED_REST,
            LARGEST,
        )
    else:
        own = head - num_heads - num_kv_heads
        of_value = tl.arange(0, PADDED_V)
        is_value = of_value < V_DIM
        values = tl.load(value + token * VALUE_STRIDE + own * V_DIM + of_value, mask=is_value, other=0.0)
        if HAS_VALUE_BIAS:
            values += tl.load(value_bias + own * V_DIM + of_value, mask=is_value, other=0.0)
        values *= value_scale
        kept = row + num_kv_heads * KEY_DIM + own * V_DIM + of_value
        num_beyond = tl.reduce(is_beyond(values, LARGEST), 0, plus)
        values = bounded(values, LARGEST)
        if IS_SHORT:
            store_short(values, kept, scale, is_value)
        else:
            tl.store(kept, values.to(cache.dtype.element_ty), mask=is_value)
    if num_beyond > 0:
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def index_query_and_key(
    query,  # float32 [T, heads, KEY_DIM], tokens QUERY_STRIDE apart
    key,  # float32 [T, KEY_DIM], tokens KEY_STRIDE apart
    weight,  # float32 [KEY_DIM], of the layer norm
    shift,
    positions,  # int32 [T]
    slots,  # int32 [T]
    cos,  # float32 [positions, ROPE / 2]
    sin,
    rotated,  # [T, heads, KEY_DIM], in the type of `keys`
    keys,  # [slots, KEY_DIM], or [T, KEY_DIM] if not BY_SLOT
    num_saturated,  # int64 []
    num_heads,
    eps,
    BY_SLOT: tl.constexpr,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    ROPE: tl.constexpr,
    PAIRS_APART: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    PADDED_REST: tl.constexpr,
    LARGEST: tl.constexpr,  # largest number that the cache holds
):
    """Grid: tokens, query heads plus one for the key."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    is_key = head == num_heads
    given = query + token * QUERY_STRIDE + head * KEY_DIM
    out = rotated + (token * num_heads + head) * KEY_DIM
    if is_key:
        given = key + token * KEY_STRIDE
        out = keys + (tl.load(slots + token).to(tl.int64) if BY_SLOT else token) * KEY_DIM
    pair = tl.arange(0, PADDED_PAIRS)
    is_pair = pair < ROPE // 2
    of_first = pair if PAIRS_APART else 2 * pair
    of_second = ROPE // 2 + pair if PAIRS_APART else 2 * pair + 1
    first = tl.load(given + of_first, mask=is_pair, other=0.0)
    second = tl.load(given + of_second, mask=is_pair, other=0.0)
    of_rest = ROPE + tl.arange(0, PADDED_REST)
    is_rest = of_rest < KEY_DIM
    rest = tl.load(given + of_rest, mask=is_rest, other=0.0)
    if is_key:
        mean = (tl.reduce(first + second, 0, plus) + tl.reduce(rest, 0, plus)) / KEY_DIM
        first = tl.where(is_pair, first - mean, 0.0)
        second = tl.where(is_pair, second - mean, 0.0)
        rest = tl.where(is_rest, rest - mean, 0.0)
        squares = tl.reduce(first * first + second * second, 0, plus) + tl.reduce(rest * rest, 0, plus)
        inverse = 1.0 / tl.sqrt(squares / KEY_DIM + eps)
        first = first * inverse * tl.load(weight + of_first, mask=is_pair, other=0.0)
        second = second * inverse * tl.load(weight + of_second, mask=is_pair, other=0.0)
        rest = rest * inverse * tl.load(weight + of_rest, mask=is_rest, other=0.0)
        first += tl.load(shift + of_first, mask=is_pair, other=0.0)
        second += tl.load(shift + of_second, mask=is_pair, other=0.0)
        rest += tl.load(shift + of_rest, mask=is_rest, other=0.0)
    angle = tl.load(positions + token).to(tl.int64) * (ROPE // 2) + pair
    cosine = tl.load(cos + angle, mask=is_pair, other=0.0)
    sine = tl.load(sin + angle, mask=is_pair, other=0.0)
    turned_first = first * cosine - second * sine
    turned_second = second * cosine + first * sine
    tl.store(out + of_first, bounded(turned_first, LARGEST).to(out.dtype.element_ty), mask=is_pair)
    tl.store(out + of_second, bounded(turned_second, LARGEST).to(out.dtype.element_ty), mask=is_pair)
    tl.store(out + of_rest, bounded(rest, LARGEST).to(out.dtype.element_ty), mask=is_rest)
    num_beyond = tl.reduce(is_beyond(turned_first, LARGEST) + is_beyond(turned_second, LARGEST), 0, plus)
    num_beyond += tl.reduce(is_beyond(rest, LARGEST), 0, plus)
    if num_beyond > 0:
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def gated(
    gate,  # float32 [T, width], rows `stride` apart
    up,  # the same
    out,  # float32 [T, width]
    width,
    stride,
    alpha,  # of the unit
    limit,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < width
    x = tl.load(gate + token * stride + column, mask=is_there, other=0.0)
    y = tl.load(up + token * stride + column, mask=is_there, other=0.0)
    tl.store(out + token * width + column, unit_of(x, y, alpha, limit, UNIT), mask=is_there)


@triton.jit
def gate_rows(
    rows,  # float32 [T, WIDTH], replaced
    x,  # float32 [T, WIDTH], rows STRIDE apart
    weight,  # float32 [WIDTH]
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """Multiply each row by the sigmoid of the product of x and the weight. Grid: tokens."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED_WIDTH)
    is_there = column < WIDTH
    value = tl.load(x + token * STRIDE + column, mask=is_there, other=0.0)
    product = tl.reduce(value * tl.load(weight + column, mask=is_there, other=0.0), 0, plus)
    at = rows + token * WIDTH + column
    tl.store(at, tl.load(at, mask=is_there, other=0.0) / (1.0 + tl.exp(-product)), mask=is_there)
