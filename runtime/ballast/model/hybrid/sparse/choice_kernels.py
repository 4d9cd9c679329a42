"""Triton kernels that select positions: scores, and rounds that keep the highest scores of each group until one group
is left. Where neighbouring tokens share a key, these pools are selected in place of positions, and spread afterwards.

A group is the set of scores that a program holds in registers. The kernel keeps the top_k highest scores of each group,
in their order, with their positions: a score outside them is also outside the top_k of the whole row. So groups are
independent, nothing is counted in memory, and no launch depends on the order of programs. Most rows take one round;
rows of up to 131,072 positions take at most two. The border in a group is the order of the lowest score that is kept; a
binary search over the range of orders finds it. Positions and blocks are read from device memory, so that a captured
launch serves every step.

A token that sees at most top_k positions is not scored. Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.number_kernels import ceil_div
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus, smaller


@triton.jit
def _share(num_positions, num_splits, SPAN: tl.constexpr):
    """(first, end) of a program's positions: multiples of SPAN."""
    share = ceil_div(ceil_div(num_positions, SPAN), num_splits) * SPAN
    first = tl.program_id(1) * share
    return first, tl.minimum(first + share, num_positions)


@triton.jit(do_not_specialize=["first_token", "max_blocks", "capacity", "num_splits"])
def score(
    query,  # [T, HEADS, WIDTH], in the keys' type
    weights,  # float32 [T, HEADS], if HAS_WEIGHTS
    keys,  # [slots, WIDTH]
    positions,  # int32 [T]
    owners,  # int32 [T], the request of each token
    blocks,  # int32 [requests, max_blocks]
    scores,  # float32 [rows, capacity], one row per token from first_token on
    scale,
    first_token,
    max_blocks,
    capacity,
    num_splits,
    TOP_K: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,  # keys of a block
    POOL: tl.constexpr,  # tokens that share a key
    HEADS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Grid: tokens, splits of the visible positions."""
    row = tl.program_id(0)
    token = (first_token + row).to(tl.int64)
    num_positions = (tl.load(positions + token) + 1) // POOL
    if num_positions <= TOP_K:
        return
    first_position, end = _share(num_positions, num_splits, SPAN)
    if first_position >= end:
        return
    of_head = tl.arange(0, PADDED_HEADS)
    of_width = tl.arange(0, PADDED_WIDTH)
    is_head = of_head < HEADS
    in_width = of_width < WIDTH
    own_query = tl.load(
        query + (token * HEADS + of_head)[:, None] * WIDTH + of_width[None, :],
        mask=is_head[:, None] & in_width[None, :],
        other=0.0,
    )
    weight = tl.full((PADDED_HEADS,), 1.0, tl.float32) * scale
    if HAS_WEIGHTS:
        weight = tl.load(weights + token * HEADS + of_head, mask=is_head, other=0.0) * scale
    own_blocks = blocks + tl.load(owners + token).to(tl.int64) * max_blocks
    own_scores = scores + row.to(tl.int64) * capacity
    for begin in range(first_position, end, SPAN):
        position = begin + tl.arange(0, SPAN)
        is_there = position < end
        block = tl.load(own_blocks + position // BLOCK_TOKENS, mask=is_there, other=0)
        slot = block.to(tl.int64) * BLOCK_TOKENS + position % BLOCK_TOKENS
        key = tl.load(
            keys + slot[:, None] * WIDTH + of_width[None, :], mask=is_there[:, None] & in_width[None, :], other=0.0
        )
        products = tl.dot(key, tl.trans(own_query), input_precision="tf32x3")
        # NaN stays NaN.
        weighted = tl.where(products < 0.0, 0.0, products) * weight[None, :]
        tl.store(own_scores + position, tl.reduce(weighted, 1, plus), mask=is_there)


@triton.jit
def _order(score):
    """Integers in the order of the scores: -0 equals 0, NaN is the largest."""
    normal = tl.where(score == 0.0, 0.0, score)
    bits = normal.to(tl.uint32, bitcast=True)
    order = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)
    return tl.where(score != score, 0xFFFFFFFF, order).to(tl.uint32)


@triton.jit
def _border(order, num_there, TOP_K: tl.constexpr):
    """(border, left): keep all entries above the border, and the first `left` entries equal to it. Entries of order 0
    do not exist."""
    low = tl.reduce(tl.where(order == 0, 0xFFFFFFFF, order).to(tl.uint32), 0, smaller)
    high = tl.reduce(order, 0, larger)
    keeps_all = num_there <= TOP_K
    low = tl.where(keeps_all, 0, low).to(tl.uint32)
    high = tl.where(keeps_all, 0, high).to(tl.uint32)
    above = tl.where(keeps_all, TOP_K, 0)
    while low < high:
        # At least TOP_K entries are not below low; `above` entries, fewer than TOP_K, are above high.
        middle = high - (high - low) // 2
        at_least = tl.reduce((order >= middle).to(tl.int32), 0, plus)
        is_low = at_least > TOP_K
        is_found = at_least == TOP_K
        low = tl.where(is_low, middle, tl.where(is_found, middle - 1, low)).to(tl.uint32)
        high = tl.where(is_low, high, middle - 1).to(tl.uint32)
        above = tl.where(is_low, above, at_least)
    return low, TOP_K - above


@triton.jit
def _keep(
    given,
    kept,
    target,
    num_there,
    first_position,
    num_rows,
    width,
    kept_width,
    is_last,
    IS_FIRST: tl.constexpr,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Keep the highest entries of a group of at most SIZE."""
    of_group = tl.arange(0, SIZE)
    is_there = of_group < num_there
    if IS_FIRST:
        order = _order(tl.load(given + of_group, mask=is_there, other=0.0))
        order = tl.where(is_there, order, 0).to(tl.uint32)
    else:
        order = tl.load(given + of_group, mask=is_there, other=0).to(tl.uint32, bitcast=True)
    border, left = _border(order, num_there, TOP_K)
    is_above = order > border
    is_equal = is_there & (order == border)
    # Both counts in one integer; neither half overflows.
    both = is_above.to(tl.int32) + (is_equal.to(tl.int32) << 16)
    before = tl.associative_scan(both, 0, plus) - both
    equal_before = before >> 16
    is_kept = is_above | (is_equal & (equal_before < left))
    to = (before & 0xFFFF) + tl.minimum(equal_before, left)
    if IS_FIRST:
        place = first_position + of_group
    else:
        place = tl.load(given + num_rows * width + of_group, mask=is_kept, other=0)
    if is_last:
        tl.store(target + to, place, mask=is_kept)
    else:
        tl.store(kept + to, order.to(tl.int32, bitcast=True), mask=is_kept)
        tl.store(kept + num_rows * kept_width + to, place, mask=is_kept)


@triton.jit(do_not_specialize=["first_token", "width", "kept_width", "num_before"])
def keep_highest(
    given,  # first round: float32 [rows, width], scores; later rounds: int32 [2, rows, width], the previous `kept`
    positions,  # int32 [T]
    chosen,  # int32 [T, TOP_K], written if a row is one group
    kept,  # int32 [2, rows, kept_width], written otherwise: orders and positions, TOP_K per group
    first_token,
    width,
    kept_width,
    num_before,  # rounds before this one
    IS_FIRST: tl.constexpr,
    TOP_K: tl.constexpr,
    POOL: tl.constexpr,
    GROUP: tl.constexpr,  # at least 2 TOP_K
    SHORT: tl.constexpr,  # size to which shorter groups are padded
):
    """One round. Grid: rows, groups. A row of one group is complete; later rounds skip it."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    token = first_token + row
    num_given = (tl.load(positions + token) + 1) // POOL
    is_done = num_given < 0
    for _ in range(num_before):
        is_done = is_done | (num_given <= GROUP)
        full = (num_given - 1) // GROUP
        num_given = full * TOP_K + tl.minimum(num_given - full * GROUP, TOP_K)
    first = group * GROUP
    num_there = tl.minimum(num_given - first, GROUP)
    if is_done | (num_there <= 0):
        return
    num_rows = tl.num_programs(0).to(tl.int64)
    own = given + row * width + first
    own_kept = kept + row * kept_width + group * TOP_K
    target = chosen + token * TOP_K
    is_last = num_given <= GROUP
    if num_there <= SHORT:
        _keep(own, own_kept, target, num_there, first, num_rows, width, kept_width, is_last, IS_FIRST, TOP_K, SHORT)
    else:
        _keep(own, own_kept, target, num_there, first, num_rows, width, kept_width, is_last, IS_FIRST, TOP_K, GROUP)


@triton.jit
def spread_pools(
    pools,  # int32 [T, TOP_POOLS], the selected pools of each token
    positions,  # int32 [T]
    chosen,  # int32 [T, TOP_POOLS * POOL + POOL - 1]
    TOP_POOLS: tl.constexpr,
    POOL: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """The positions of the selected pools, then those after the last complete pool. Grid: tokens."""
    token = tl.program_id(0).to(tl.int64)
    num_seen = tl.load(positions + token) + 1
    num_complete = num_seen // POOL
    num_pooled = tl.minimum(num_complete, TOP_POOLS) * POOL
    place = tl.arange(0, PADDED_WIDTH)
    is_pooled = place < num_pooled
    pool = tl.load(pools + token * TOP_POOLS + place // POOL, mask=is_pooled, other=0)
    position = tl.where(is_pooled, pool * POOL + place % POOL, num_complete * POOL + place - num_pooled)
    at = chosen + token * (TOP_POOLS * POOL + POOL - 1) + place
    tl.store(at, position, mask=place < num_pooled + num_seen % POOL)
