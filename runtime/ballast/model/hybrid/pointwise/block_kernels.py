"""Triton kernels of an indexer that selects blocks of positions (Qwen3.8-Flash-Next): its queries, and the keys of
blocks.

A block is a pool of POOL tokens, counted from a request's first token. Its key is the mean of its tokens' keys, normed
and rotated by the position of its first token. States are those of pool_kernels.py, without gates.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.number_kernels import bounded, is_beyond
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus


@triton.jit
def _store_normed(
    first,
    second,
    rest,
    norm,
    position,
    cos,
    sin,
    out,
    num_saturated,
    eps,
    KEY: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    PADDED_REST: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Store the RMS norm of a head whose entries are both halves of its rotated ones and the rest, rotated."""
    pair = tl.arange(0, PADDED_PAIRS)
    is_pair = pair < ROPE // 2
    of_rest = ROPE + tl.arange(0, PADDED_REST)
    is_rest = of_rest < KEY
    squares = tl.reduce(first * first + second * second, 0, plus) + tl.reduce(rest * rest, 0, plus)
    inverse = 1.0 / tl.sqrt(squares / KEY + eps)
    first = first * inverse * tl.load(norm + pair, mask=is_pair, other=0.0)
    second = second * inverse * tl.load(norm + ROPE // 2 + pair, mask=is_pair, other=0.0)
    rest = rest * inverse * tl.load(norm + of_rest, mask=is_rest, other=0.0)
    angle = position.to(tl.int64) * (ROPE // 2) + pair
    cosine = tl.load(cos + angle, mask=is_pair, other=0.0)
    sine = tl.load(sin + angle, mask=is_pair, other=0.0)
    turned_first = first * cosine - second * sine
    turned_second = second * cosine + first * sine
    kept = out.dtype.element_ty
    tl.store(out + pair, bounded(turned_first, LARGEST).to(kept), mask=is_pair)
    tl.store(out + ROPE // 2 + pair, bounded(turned_second, LARGEST).to(kept), mask=is_pair)
    tl.store(out + of_rest, bounded(rest, LARGEST).to(kept), mask=is_rest)
    num_beyond = tl.reduce(is_beyond(turned_first, LARGEST) + is_beyond(turned_second, LARGEST), 0, plus)
    num_beyond += tl.reduce(is_beyond(rest, LARGEST), 0, plus)
    if num_beyond > 0:
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def norm_queries(
    query,  # float32 [T, heads, KEY], tokens STRIDE apart
    norm,  # float32 [KEY]
    positions,  # int32 [T]
    cos,  # float32 [positions, ROPE / 2]
    sin,
    normed,  # [T, heads, KEY], in the type of keys
    num_saturated,  # int64 []
    eps,
    STRIDE: tl.constexpr,
    KEY: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    PADDED_REST: tl.constexpr,
    LARGEST: tl.constexpr,  # largest number of the keys' type
):
    """Grid: tokens, heads."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = query + token * STRIDE + head * KEY
    pair = tl.arange(0, PADDED_PAIRS)
    of_rest = ROPE + tl.arange(0, PADDED_REST)
    _store_normed(
        tl.load(own + pair, mask=pair < ROPE // 2, other=0.0),
        tl.load(own + ROPE // 2 + pair, mask=pair < ROPE // 2, other=0.0),
        tl.load(own + of_rest, mask=of_rest < KEY, other=0.0),
        norm,
        tl.load(positions + token),
        cos,
        sin,
        normed + (token * tl.num_programs(1) + head) * KEY,
        num_saturated,
        eps,
        KEY,
        ROPE,
        PADDED_PAIRS,
        PADDED_REST,
        LARGEST,
    )


@triton.jit
def _mean(keys, states, token, first, slot, column, is_there, KEY: tl.constexpr, POOL: tl.constexpr):
    """Columns of the mean of the POOL keys of which the last is a token's. Tokens before `first` are in the state."""
    total = tl.where(is_there, 0.0, 0.0)
    for index in tl.static_range(POOL):
        source = token - (POOL - 1) + index
        new = keys + source.to(tl.int64) * KEY + column
        kept = states + (slot * (POOL - 1) + index) * KEY + column
        total += tl.load(new, mask=is_there & (source >= first), other=0.0)
        total += tl.load(kept, mask=is_there & (source < first) & (slot > 0), other=0.0)
    return total / POOL


@triton.jit
def write_means(
    keys,  # float32 [T, KEY]
    norm,  # float32 [KEY]
    states,  # float32 [state slots, POOL - 1, KEY]
    positions,  # int32 [T]
    slots,  # int32 [T]
    owners,  # int32 [T], the row of each token
    row_begins,  # int32 [R + 1]
    before,  # int32 [R], the slot with the state before the row
    cos,  # float32 [positions, ROPE / 2]
    sin,
    pooled,  # [slots / POOL, KEY]
    num_saturated,  # int64 []
    eps,
    KEY: tl.constexpr,
    POOL: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    PADDED_REST: tl.constexpr,
    LARGEST: tl.constexpr,  # largest number of the keys' type
):
    """The keys of complete blocks. Grid: tokens, those that complete none do nothing."""
    token = tl.program_id(0)
    position = tl.load(positions + token)
    if position % POOL != POOL - 1:
        return
    row = tl.load(owners + token)
    first, slot = tl.load(row_begins + row), tl.load(before + row).to(tl.int64)
    pair = tl.arange(0, PADDED_PAIRS)
    of_rest = ROPE + tl.arange(0, PADDED_REST)
    _store_normed(
        _mean(keys, states, token, first, slot, pair, pair < ROPE // 2, KEY, POOL),
        _mean(keys, states, token, first, slot, ROPE // 2 + pair, pair < ROPE // 2, KEY, POOL),
        _mean(keys, states, token, first, slot, of_rest, of_rest < KEY, KEY, POOL),
        norm,
        position - (POOL - 1),
        cos,
        sin,
        pooled + (tl.load(slots + token) // POOL).to(tl.int64) * KEY,
        num_saturated,
        eps,
        KEY,
        ROPE,
        PADDED_PAIRS,
        PADDED_REST,
        LARGEST,
    )
