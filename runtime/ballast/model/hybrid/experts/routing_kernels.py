"""Triton kernels that select the experts, divide them and order the pairs; torch needs a dozen launches for each.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import ceil_div, sigmoid, softplus
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus


@triton.jit
def _better(value, index, other_value, other_index):
    """The larger value with its index; for equal values the one with the lower index."""
    is_first = (value > other_value) | ((value == other_value) & (index < other_index))
    return tl.where(is_first, value, other_value), tl.where(is_first, index, other_index)


@triton.jit
def route(
    logits,  # float32 [T, GROUPS * GROUP_SIZE]
    bias,  # float32 [GROUPS * GROUP_SIZE]
    table,  # int32 [vocabulary, CHOSEN], if HAS_TABLE
    token_ids,  # int32 [T], if HAS_TABLE
    ids,  # int32 [T, CHOSEN]
    weights,  # float32 [T, CHOSEN]
    scale,
    HAS_BIAS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    GATING: tl.constexpr,  # softmax, sigmoid, or the square root of softplus
    IS_TOP2: tl.constexpr,
    NORMALIZES: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_USED: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    CHOSEN: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    PADDED_GROUP_SIZE: tl.constexpr,
    PADDED_CHOSEN: tl.constexpr,
):
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    of_group = tl.arange(0, PADDED_GROUPS)
    of_member = tl.arange(0, PADDED_GROUP_SIZE)
    expert = of_group[:, None] * GROUP_SIZE + of_member[None, :]
    is_expert = (of_group < GROUPS)[:, None] & (of_member < GROUP_SIZE)[None, :]
    none = float("-inf")

    logit = tl.load(logits + token * (GROUPS * GROUP_SIZE) + expert, mask=is_expert, other=none)
    if GATING == 1:
        score = sigmoid(logit)
    elif GATING == 2:
        score = tl.sqrt(softplus(logit))
    else:
        peak = tl.reduce(tl.reduce(logit, 1, larger), 0, larger)
        score = tl.exp(logit - peak)
        score = score / tl.reduce(tl.reduce(score, 1, plus), 0, plus)
    biased = score
    if HAS_BIAS:
        biased = biased + tl.load(bias + expert, mask=is_expert, other=0.0)
    biased = tl.where(biased == biased, biased, -1e30)  # NaN comes last, and is still selected at most once
    biased = tl.where(is_expert, biased, none)

    if GROUPS_USED < GROUPS:
        best, place = tl.reduce((biased, expert), 1, _better)
        if IS_TOP2:
            best = best + tl.reduce(tl.where(expert == place[:, None], none, biased), 1, larger)
        for _ in tl.static_range(GROUPS_USED):
            _, group = tl.reduce((best, of_group), 0, _better)
            best = tl.where(of_group == group, none, best)
        biased = tl.where((best == none)[:, None], biased, none)

    of_choice = tl.arange(0, PADDED_CHOSEN)
    chosen = tl.full((PADDED_CHOSEN,), 0, tl.int32)
    weight = tl.full((PADDED_CHOSEN,), 0.0, tl.float32)
    for index in tl.static_range(CHOSEN):
        if HAS_TABLE:
            place = tl.load(table + tl.load(token_ids + token).to(tl.int64) * CHOSEN + index)
        else:
            values, places = tl.reduce((biased, expert), 1, _better)
            _, place = tl.reduce((values, places), 0, _better)
        is_place = expert == place
        found = tl.reduce(tl.reduce(tl.where(is_place & is_expert, score, 0.0), 1, plus), 0, plus)
        chosen = tl.where(of_choice == index, place, chosen)
        weight = tl.where(of_choice == index, found, weight)
        biased = tl.where(is_place, none, biased)
    if NORMALIZES:
        weight = weight / (tl.reduce(weight, 0, plus) + 1e-20)
    kept = of_choice < CHOSEN
    tl.store(ids + token * CHOSEN + of_choice, chosen, mask=kept)
    tl.store(weights + token * CHOSEN + of_choice, weight * scale, mask=kept)


@triton.jit(do_not_specialize=["num_pairs"])
def divide(
    ids,  # int32 [pairs]
    slots,  # int32 [E]
    share,  # float32 []
    num_across,  # int64 []
    uses,  # int32 [E]
    gpu_slots,  # int32 [pairs], also the next two
    across,
    on_host,
    phase,
    num_pairs,
    HAS_SLOTS: tl.constexpr,
    SHARES: tl.constexpr,
    COUNTS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    wait_for_previous()
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    is_pair = pair < num_pairs
    expert = tl.load(ids + pair, mask=is_pair, other=-1)
    if COUNTS:
        tl.atomic_add(uses + expert, 1, mask=is_pair, sem="relaxed")
    left = expert
    slot = tl.full((PAIRS,), -1, tl.int32)
    if HAS_SLOTS:
        slot = tl.load(slots + expert, mask=is_pair, other=-1)
        left = tl.where(slot < 0, expert, -1)
    goes = tl.full((PAIRS,), False, tl.int1)
    if SHARES:  # a single program
        row, col = left[:, None], left[None, :]
        again = tl.reduce(((row == col) & (pair[:, None] < pair[None, :])).to(tl.int32), 0, plus)
        is_first = ((again == 0) & (left >= 0)).to(tl.int32)
        rank = tl.reduce(tl.where(col < row, is_first[None, :], 0), 1, plus)
        distinct = tl.reduce(is_first, 0, plus)
        count = tl.floor(tl.load(share) * distinct.to(tl.float32) + phase).to(tl.int32)
        goes = (left >= 0) & (rank < count)
        tl.store(num_across, tl.load(num_across) + count)
    tl.store(gpu_slots + pair, slot, mask=is_pair)
    tl.store(across + pair, tl.where(goes, left, -1), mask=is_pair)
    tl.store(on_host + pair, tl.where(goes, -1, left), mask=is_pair)


@triton.jit(do_not_specialize=["num_pairs"])
def group_pairs(
    ids,  # int32 [pairs]
    order,  # int32 [pairs]
    tiles,  # int32 [pairs, 3]
    num_pairs,
    num_experts,
    PAIRS: tl.constexpr,
):
    """Stable order of pairs by expert, pairs without an expert last; tiles (expert, begin, end), one per distinct
    expert in ascending order, then (-1, 0, 0). One program."""
    pair = tl.arange(0, PAIRS)
    is_pair = pair < num_pairs
    expert = tl.load(ids + pair, mask=is_pair, other=-1)
    is_known = (expert >= 0) & (expert < num_experts)
    key = tl.where(is_known, expert, num_experts)
    key = tl.where(is_pair, key, num_experts + 1)
    # Each row is a pair, and counts the columns that precede it.
    lower = key[None, :] < key[:, None]
    equal = key[None, :] == key[:, None]
    begin = tl.reduce(lower.to(tl.int32), 1, plus)
    place = begin + tl.reduce((equal & (pair[None, :] < pair[:, None])).to(tl.int32), 1, plus)
    tl.store(order + place, pair, mask=is_pair)
    # Now by column: a column is the first of its expert if no equal one precedes it.
    again = tl.reduce((equal & (pair[:, None] < pair[None, :])).to(tl.int32), 0, plus)
    is_first = ((again == 0) & is_known).to(tl.int32)
    tile = tl.reduce(tl.where(lower, is_first[None, :], 0), 1, plus)
    size = tl.reduce(equal.to(tl.int32), 1, plus)
    num_tiles = tl.reduce(is_first, 0, plus)
    has_tile = (place == begin) & is_known
    tl.store(tiles + tile * 3, expert, mask=has_tile)
    tl.store(tiles + tile * 3 + 1, begin, mask=has_tile)
    tl.store(tiles + tile * 3 + 2, begin + size, mask=has_tile)
    is_spare = is_pair & (pair >= num_tiles)
    tl.store(tiles + pair * 3, tl.full((PAIRS,), -1, tl.int32), mask=is_spare)
    tl.store(tiles + pair * 3 + 1, tl.full((PAIRS,), 0, tl.int32), mask=is_spare)
    tl.store(tiles + pair * 3 + 2, tl.full((PAIRS,), 0, tl.int32), mask=is_spare)


@triton.jit(do_not_specialize=["num_pairs", "num_experts"])
def order_pairs(
    ids,  # int32 [pairs]
    order,  # int32 [pairs]
    begins,  # int32 [experts + 1], the pairs of lower experts
    num_pairs,
    num_experts,
    PAIRS: tl.constexpr,
):
    """Stable order of pairs by expert, pairs without an expert last. Grid: experts plus one for these. A program reads
    all pairs twice: it counts those that precede its own, and places its own."""
    own = tl.program_id(0)
    lane = tl.arange(0, PAIRS)
    place = 0
    for first in range(0, num_pairs, PAIRS):
        pair = first + lane
        expert = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
        key = tl.where((expert >= 0) & (expert < num_experts), expert, num_experts)
        place += tl.reduce(((pair < num_pairs) & (key < own)).to(tl.int32), 0, plus)
    tl.store(begins + own, place)
    for first in range(0, num_pairs, PAIRS):
        pair = first + lane
        expert = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
        key = tl.where((expert >= 0) & (expert < num_experts), expert, num_experts)
        is_own = ((pair < num_pairs) & (key == own)).to(tl.int32)
        tl.store(order + place + tl.associative_scan(is_own, 0, plus) - is_own, pair, mask=is_own > 0)
        place += tl.reduce(is_own, 0, plus)


@triton.jit(do_not_specialize=["num_tiles", "num_experts"])
def place_tiles(
    begins,  # int32 [experts + 1], of each expert's pairs in the order
    tiles,  # int32 [tiles, 3]
    num_tiles,
    num_experts,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Tiles (expert, begin, end) of up to BLOCK pairs, in ascending order, then (-1, 0, 0). Grid: blocks of TILES."""
    expert = tl.arange(0, EXPERTS)
    is_expert = expert < num_experts
    begin = tl.load(begins + expert, mask=is_expert, other=0)
    end = tl.load(begins + expert + 1, mask=is_expert, other=0)
    count = ceil_div(end - begin, BLOCK)
    last = tl.associative_scan(count, 0, plus)
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    own = tl.reduce((last[None, :] <= tile[:, None]).to(tl.int32), 1, plus)
    is_own = expert[None, :] == own[:, None]
    first = tl.reduce(tl.where(is_own, (last - count)[None, :], 0), 1, plus)
    own_begin = tl.reduce(tl.where(is_own, begin[None, :], 0), 1, plus) + (tile - first) * BLOCK
    own_end = tl.minimum(own_begin + BLOCK, tl.reduce(tl.where(is_own, end[None, :], 0), 1, plus))
    is_tile = own < num_experts
    tl.store(tiles + tile * 3, tl.where(is_tile, own, -1), mask=tile < num_tiles)
    tl.store(tiles + tile * 3 + 1, tl.where(is_tile, own_begin, 0), mask=tile < num_tiles)
    tl.store(tiles + tile * 3 + 2, tl.where(is_tile, own_end, 0), mask=tile < num_tiles)
