"""Triton kernels of attention to selected positions: all heads of a token share the rows that are gathered for it.

A program computes a tile of those heads of a token that share a head of the cache, over a fraction (split) of its
selected positions; the results of the splits are merged afterwards. Triton's built-in operations only: see
reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.attention.split_kernels import merge_splits
from ballast.model.hybrid.shared_kernels.number_kernels import ceil_div
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus


@triton.jit
def _num_chosen(position, TOP_K: tl.constexpr, POOL: tl.constexpr):
    """Number of selected positions of a token: with pools, those after the last complete one are in addition."""
    num_seen = tl.load(position) + 1
    return tl.minimum(num_seen, TOP_K + num_seen % POOL)


@triton.jit
def _share(num_chosen, num_splits, KEYS: tl.constexpr):
    """Number of selected positions of one split: a multiple of KEYS."""
    return ceil_div(ceil_div(num_chosen, KEYS), num_splits) * KEYS


@triton.jit
def _slots(chosen, blocks, place, end, BLOCK_TOKENS: tl.constexpr):
    """The cache slots of the selected positions at `place`; 0 from `end` on."""
    is_there = place < end
    position = tl.load(chosen + place, mask=is_there, other=0)
    block = tl.load(blocks + position // BLOCK_TOKENS, mask=is_there, other=0)
    return block.to(tl.int64) * BLOCK_TOKENS + position % BLOCK_TOKENS


@triton.jit(do_not_specialize=["group", "max_blocks", "num_tiles"])
def attend(
    query,  # [T, heads, KEY + MORE_KEY], times the score scale and log2(e), in the cache's type
    cache,  # [slots, ROW_WIDTH]: keys by head from 0, values by head from VALUES_AT; 0: a value is the start of its key
    chosen,  # int32 [T, TOP_K + POOL - 1]
    positions,  # int32 [T]
    owners,  # int32 [T], the request of each token
    blocks,  # int32 [requests, max_blocks]
    sums,  # float32 [splits, T, heads, V_DIM], the average of values of each split
    peaks,  # float32 [splits, T, heads], base-2 logarithms of the splits' weights
    group,  # heads that share a head of the cache
    max_blocks,
    num_tiles,  # of a group
    TOP_K: tl.constexpr,
    POOL: tl.constexpr,  # tokens that are selected together
    BLOCK_TOKENS: tl.constexpr,
    ROW_WIDTH: tl.constexpr,
    VALUES_AT: tl.constexpr,
    KEY: tl.constexpr,
    MORE_KEY: tl.constexpr,
    V_DIM: tl.constexpr,
    PADDED_KEY: tl.constexpr,
    PADDED_MORE: tl.constexpr,
    PADDED_V: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Grid: tiles of tokens' groups, with those of a token adjacent; splits; heads of the cache. A split without
    positions writes nothing."""
    token = (tl.program_id(0) // num_tiles).to(tl.int64)
    split = tl.program_id(1)
    num_chosen = _num_chosen(positions + token, TOP_K, POOL)
    share = _share(num_chosen, tl.num_programs(1), KEYS)
    first_key = split * share
    end_key = tl.minimum(first_key + share, num_chosen)
    if first_key >= end_key:
        return

    head = tl.program_id(0) % num_tiles * ROWS + tl.arange(0, ROWS)
    is_head = head < group
    cached_head, num_heads = tl.program_id(2), group * tl.num_programs(2)
    head += cached_head * group
    of_key = tl.arange(0, PADDED_KEY)
    in_key = of_key < KEY
    of_value = tl.arange(0, PADDED_V)
    in_value = of_value < V_DIM
    row_query = query + (token * num_heads + head)[:, None] * (KEY + MORE_KEY)
    own_query = tl.load(row_query + of_key[None, :], mask=is_head[:, None] & in_key[None, :], other=0.0)
    if MORE_KEY > 0:
        of_more = tl.arange(0, PADDED_MORE)
        in_more = of_more < MORE_KEY
        more_query = tl.load(row_query + KEY + of_more[None, :], mask=is_head[:, None] & in_more[None, :], other=0.0)
    own_chosen = chosen + token * (TOP_K + POOL - 1)
    own_blocks = blocks + tl.load(owners + token).to(tl.int64) * max_blocks
    of_keys = tl.arange(0, KEYS)

    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    attended = tl.full((ROWS, PADDED_V), 0.0, tl.float32)
    slot = _slots(own_chosen, own_blocks, first_key + of_keys, end_key, BLOCK_TOKENS)
    for first in range(first_key, end_key, KEYS):
        is_key = first + of_keys < end_key
        row = cache + cached_head * (KEY + MORE_KEY) + slot[:, None] * ROW_WIDTH
        own_key = tl.load(row + of_key[None, :], mask=is_key[:, None] & in_key[None, :], other=0.0)
        if MORE_KEY > 0:
            more_key = tl.load(row + KEY + of_more[None, :], mask=is_key[:, None] & in_more[None, :], other=0.0)
        if VALUES_AT > 0:
            of_row = VALUES_AT + cached_head * V_DIM + slot[:, None] * ROW_WIDTH
            value = tl.load(cache + of_row + of_value[None, :], mask=is_key[:, None] & in_value[None, :], other=0.0)
        else:
            value = own_key
        # Computed while these rows are being loaded, so that no load waits for it.
        slot = _slots(own_chosen, own_blocks, first + KEYS + of_keys, end_key, BLOCK_TOKENS)
        scores = tl.dot(own_query, tl.trans(own_key), input_precision="tf32x3")
        if MORE_KEY > 0:
            scores = tl.dot(more_query, tl.trans(more_key), scores, input_precision="tf32x3")
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.reduce(scores, 1, larger))
        # A row whose scores are all -inf keeps -inf; -inf minus -inf would be NaN.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.reduce(weights, 1, plus)
        attended = tl.dot(weights.to(value.dtype), value, attended * fade[:, None], input_precision="tf32x3")
        peak = new_peak

    has_seen = total > 0.0
    safe_total = tl.where(has_seen, total, 1.0)
    at = (split * (tl.num_programs(0) // num_tiles) + token) * num_heads + head
    kept = is_head[:, None] & in_value[None, :]
    tl.store(sums + at[:, None] * V_DIM + of_value[None, :], attended / safe_total[:, None], mask=kept)
    tl.store(peaks + at, tl.where(has_seen, peak + tl.log2(safe_total), float("-inf")), mask=is_head)


@triton.jit(do_not_specialize=["num_splits"])
def merge(
    sums,  # as `attend` writes them
    peaks,
    positions,
    attended,  # float32 [T, heads, V_DIM]
    num_splits,
    TOP_K: tl.constexpr,
    POOL: tl.constexpr,
    V_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,  # maximum splits, a power of two
    WIDTH: tl.constexpr,
):
    """Merge the splits. Grid: tokens, heads, runs of WIDTH of their values."""
    num_chosen = _num_chosen(positions + tl.program_id(0).to(tl.int64), TOP_K, POOL)
    num_used = ceil_div(num_chosen, _share(num_chosen, num_splits, KEYS))
    merge_splits(sums, peaks, attended, num_used, V_DIM, SPLITS, WIDTH)
