"""Triton kernels of a choice of positions: scores, the border between what is chosen and what is not, and the positions
themselves, in a few launches that wait for nothing.

The border is the order of the lowest score that is chosen. Its digits, 11, 11 and 10 bits, are found from the highest
one by counting, as the CPU does: many programs count shares of a token's scores, and each launch reads what the one
before has counted. Scores of equal order are told apart by their positions, so no launch depends on which program comes
first. Positions and blocks are read from device memory, so that a captured launch serves every step.

A token that sees no more than may be chosen is not scored. Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.reduce_kernels import plus


@triton.jit
def _ceil_div(a, b):
    return (a + b - 1) // b


@triton.jit
def _share(num_positions, num_splits, SPAN: tl.constexpr):
    """(first, end) of a program's positions: whole runs of SPAN."""
    share = _ceil_div(_ceil_div(num_positions, SPAN), num_splits) * SPAN
    first = tl.program_id(1) * share
    return first, tl.minimum(first + share, num_positions)


@triton.jit(do_not_specialize=["first_token", "max_blocks", "capacity", "num_splits"])
def score(
    query,  # [T, HEADS, WIDTH], of the keys' type
    weights,  # float32 [T, HEADS]
    keys,  # [slots, WIDTH]
    positions,  # int32 [T]
    owners,  # int32 [T], the request of each token
    blocks,  # int32 [requests, max_blocks]
    scores,  # float32 [rows, capacity], a row each token from first_token on
    scale,
    first_token,
    max_blocks,
    capacity,
    num_splits,
    TOP_K: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Grid: tokens, splits of the positions that they see."""
    row = tl.program_id(0)
    token = (first_token + row).to(tl.int64)
    num_positions = tl.load(positions + token) + 1
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
    """Whole numbers that are ordered as scores are: -0 is 0, NaN is above all."""
    normal = tl.where(score == 0.0, 0.0, score)
    bits = normal.to(tl.uint32, bitcast=True)
    order = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)
    return tl.where(score != score, 0xFFFFFFFF, order).to(tl.uint32)


@triton.jit
def _digits(borders, counts, row, DIGIT: tl.constexpr, TOP_K: tl.constexpr, BITS: tl.constexpr, LAST: tl.constexpr):
    """(the border's digits before DIGIT, how many are left to be chosen of those that begin with these). The digit
    before is found from its counts, and what was before it is read."""
    if DIGIT == 0:
        border = tl.full((), 0, tl.uint32)
        left = tl.full((), TOP_K, tl.int32)
    else:
        if DIGIT == 1:
            before = tl.full((), 0, tl.uint32)
            before_left = tl.full((), TOP_K, tl.int32)
        else:
            before = tl.load(borders + (row * 3 + DIGIT - 2) * 2).to(tl.uint32, bitcast=True)
            before_left = tl.load(borders + (row * 3 + DIGIT - 2) * 2 + 1)
        digit = tl.arange(0, 1 << BITS)
        count = tl.load(counts + ((row * 3 + DIGIT - 1) << BITS) + digit)
        at_least = tl.associative_scan(count, 0, plus, reverse=True)
        found = tl.reduce((at_least >= before_left).to(tl.int32), 0, plus) - 1
        above = tl.reduce(tl.where(digit == found, at_least - count, 0), 0, plus)
        left = before_left - above
        border = (before << (LAST if DIGIT == 3 else BITS)) | found.to(tl.uint32)
        if tl.program_id(1) == 0:
            tl.store(borders + (row * 3 + DIGIT - 1) * 2, border.to(tl.int32, bitcast=True))
            tl.store(borders + (row * 3 + DIGIT - 1) * 2 + 1, left)
    return border, left


@triton.jit(do_not_specialize=["first_token", "capacity", "num_splits"])
def count_digit(
    scores,  # float32 [rows, capacity]
    positions,  # int32 [T]
    borders,  # int32 [rows, 3, 2]: after each digit, the border so far and how many are left
    counts,  # int32 [rows, 3, 1 << BITS], of each digit's scores by it; zeros before
    first_token,
    capacity,
    num_splits,
    DIGIT: tl.constexpr,
    TOP_K: tl.constexpr,
    BITS: tl.constexpr,
    LAST: tl.constexpr,  # bits of the third digit
    SPAN: tl.constexpr,
):
    """Count the scores that begin with the border's digits before DIGIT by their next one. Grid: rows, splits."""
    row = tl.program_id(0).to(tl.int64)
    num_positions = tl.load(positions + first_token + row) + 1
    if num_positions <= TOP_K:
        return
    first_position, end = _share(num_positions, num_splits, SPAN)
    border, _ = _digits(borders, counts, row, DIGIT, TOP_K, BITS, LAST)
    digit = tl.arange(0, 1 << BITS)
    found = tl.full((1 << BITS,), 0, tl.int32)
    for begin in range(first_position, end, SPAN):
        position = begin + tl.arange(0, SPAN)
        is_there = position < end
        order = _order(tl.load(scores + row * capacity + position, mask=is_there, other=0.0))
        if DIGIT == 0:
            own = order >> (BITS + LAST)
        elif DIGIT == 1:
            is_there = is_there & (order >> (BITS + LAST) == border)
            own = (order >> LAST) & ((1 << BITS) - 1)
        else:
            is_there = is_there & (order >> LAST == border)
            own = order & ((1 << LAST) - 1)
        found += tl.histogram(own.to(tl.int32), 1 << BITS, mask=is_there)
    tl.atomic_add(counts + ((row * 3 + DIGIT) << BITS) + digit, found, mask=found > 0, sem="relaxed")


@triton.jit(do_not_specialize=["first_token", "capacity", "num_splits"])
def count_chosen(
    scores,
    positions,
    borders,
    counts,
    totals,  # int32 [rows, splits, 2]: of each split, scores above the border and at it
    first_token,
    capacity,
    num_splits,
    TOP_K: tl.constexpr,
    BITS: tl.constexpr,
    LAST: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Grid: rows, splits. Other arguments as for `count_digit`."""
    row = tl.program_id(0).to(tl.int64)
    num_positions = tl.load(positions + first_token + row) + 1
    if num_positions <= TOP_K:
        return
    first_position, end = _share(num_positions, num_splits, SPAN)
    border, _ = _digits(borders, counts, row, 3, TOP_K, BITS, LAST)
    above = tl.full((SPAN,), 0, tl.int32)
    equal = tl.full((SPAN,), 0, tl.int32)
    for begin in range(first_position, end, SPAN):
        position = begin + tl.arange(0, SPAN)
        is_there = position < end
        order = _order(tl.load(scores + row * capacity + position, mask=is_there, other=0.0))
        above += (is_there & (order > border)).to(tl.int32)
        equal += (is_there & (order == border)).to(tl.int32)
    own = totals + (row * num_splits + tl.program_id(1)) * 2
    tl.store(own, tl.reduce(above, 0, plus))
    tl.store(own + 1, tl.reduce(equal, 0, plus))


@triton.jit(do_not_specialize=["first_token", "capacity", "num_splits"])
def write_chosen(
    scores,
    positions,
    borders,
    totals,
    chosen,  # int32 [T, TOP_K]
    first_token,
    capacity,
    num_splits,
    TOP_K: tl.constexpr,
    MAX_SPLITS: tl.constexpr,  # a power of two
    SPAN: tl.constexpr,
):
    """Grid: rows, splits. Other arguments as for `count_chosen`."""
    row = tl.program_id(0).to(tl.int64)
    token = first_token + row
    num_positions = tl.load(positions + token) + 1
    first_position, end = _share(num_positions, num_splits, SPAN)
    own = chosen + token * TOP_K
    if num_positions <= TOP_K:
        for begin in range(first_position, end, SPAN):
            position = begin + tl.arange(0, SPAN)
            tl.store(own + position, position, mask=position < end)
        return
    border = tl.load(borders + (row * 3 + 2) * 2).to(tl.uint32, bitcast=True)
    left = tl.load(borders + (row * 3 + 2) * 2 + 1)
    split = tl.arange(0, MAX_SPLITS)
    is_before = split < tl.program_id(1)
    total = totals + (row * num_splits + split) * 2
    above = tl.reduce(tl.load(total, mask=is_before, other=0), 0, plus)
    equal = tl.reduce(tl.load(total + 1, mask=is_before, other=0), 0, plus)
    for begin in range(first_position, end, SPAN):
        position = begin + tl.arange(0, SPAN)
        is_there = position < end
        order = _order(tl.load(scores + row * capacity + position, mask=is_there, other=0.0))
        is_above = is_there & (order > border)
        is_equal = is_there & (order == border)
        # Both in one sum, which neither half of a number overflows.
        both = is_above.to(tl.int32) + (is_equal.to(tl.int32) << 16)
        up_to = tl.associative_scan(both, 0, plus)
        above_before = above + ((up_to - both) & 0xFFFF)
        equal_before = equal + ((up_to - both) >> 16)
        is_taken = is_above | (is_equal & (equal_before < left))
        tl.store(own + above_before + tl.minimum(equal_before, left), position, mask=is_taken)
        of_span = tl.reduce(both, 0, plus)
        above += of_span & 0xFFFF
        equal += of_span >> 16
