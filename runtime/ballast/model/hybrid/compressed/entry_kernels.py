"""Triton kernels of compressed entries (DeepSeek-V4): norms and rotations, the entries that a step completes, and the
states that it leaves.

Entry w of a request stands for its tokens w * RATIO to (w + 1) * RATIO - 1. Each of its columns is the mean of what
these tokens give, weighted by the softmax of their gates. If entries overlap, it also takes in the tokens of the entry
before, which give other columns to it. A state holds the maximum, the sum and the total of these softmaxes: part 0 for
the incomplete entry, part 1 for the one after it; a sum of 0 holds no token. Slot 0 of the states reads as no tokens,
and nothing is written to it. Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.number_kernels import bounded, is_beyond
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus


@triton.jit
def norm_and_turn(
    given,  # float32 [T, heads, WIDTH], tokens STRIDE apart
    weight,  # float32 [WIDTH], if HAS_WEIGHT
    positions,  # int32 [T]
    slots,  # int32 [T], if RATIO
    cos,  # float32 [positions, ROPE / 2]
    sin,
    out,  # [T, heads, WIDTH], or by entry [E, WIDTH]
    num_saturated,  # int64 []
    num_heads,
    eps,
    scale,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROPE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    RATIO: tl.constexpr,  # tokens of an entry; 0: there are no entries, but heads of tokens
    ROW_TOKENS: tl.constexpr,  # tokens whose rows of the cache hold an entry
    PADDED_REST: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    LARGEST: tl.constexpr,  # largest number of the output
):
    """Norms heads, rotates their last ROPE numbers, 2i together with 2i + 1, and multiplies them by `scale`. An entry
    is at the token that completes it, and is rotated by the position of its first token. Grid: tokens, heads."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + token)
    to = (token * num_heads + head) * WIDTH
    if RATIO > 0:
        if position % RATIO != RATIO - 1:
            return
        position = position + 1 - RATIO
        to = (tl.load(slots + token) // ROW_TOKENS).to(tl.int64) * WIDTH
    column = tl.arange(0, PADDED_REST)
    is_rest = column < WIDTH - ROPE
    pair = tl.arange(0, PADDED_PAIRS)
    is_pair = pair < ROPE // 2
    of_even = WIDTH - ROPE + 2 * pair
    at = given + token * STRIDE + head * WIDTH
    rest = tl.load(at + column, mask=is_rest, other=0.0)
    even = tl.load(at + of_even, mask=is_pair, other=0.0)
    odd = tl.load(at + of_even + 1, mask=is_pair, other=0.0)
    if HAS_NORM:
        squares = tl.reduce(rest * rest, 0, plus) + tl.reduce(even * even + odd * odd, 0, plus)
        inverse = 1.0 / tl.sqrt(squares / WIDTH + eps)
        rest, even, odd = rest * inverse, even * inverse, odd * inverse
    if HAS_WEIGHT:
        rest *= tl.load(weight + column, mask=is_rest, other=0.0)
        even *= tl.load(weight + of_even, mask=is_pair, other=0.0)
        odd *= tl.load(weight + of_even + 1, mask=is_pair, other=0.0)
    angle = position.to(tl.int64) * (ROPE // 2) + pair
    cosine = tl.load(cos + angle, mask=is_pair, other=0.0)
    sine = tl.load(sin + angle, mask=is_pair, other=0.0)
    rest = rest * scale
    first = (even * cosine - odd * sine) * scale
    second = (odd * cosine + even * sine) * scale
    kind = out.dtype.element_ty
    tl.store(out + to + column, bounded(rest, LARGEST).to(kind), mask=is_rest)
    tl.store(out + to + of_even, bounded(first, LARGEST).to(kind), mask=is_pair)
    tl.store(out + to + of_even + 1, bounded(second, LARGEST).to(kind), mask=is_pair)
    num_beyond = tl.reduce(is_beyond(rest, LARGEST), 0, plus)
    num_beyond += tl.reduce(is_beyond(first, LARGEST) + is_beyond(second, LARGEST), 0, plus)
    if num_beyond > 0:
        tl.atomic_add(num_saturated, num_beyond.to(tl.int64))


@triton.jit
def turn_back(
    heads,  # float32 [T, heads, WIDTH], replaced
    positions,  # int32 [T]
    cos,  # float32 [positions, ROPE / 2]
    sin,
    num_heads,
    WIDTH: tl.constexpr,
    ROPE: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
):
    """Rotates the last ROPE numbers of heads backwards. Grid: tokens, blocks of HEADS."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, PADDED_PAIRS)
    is_pair = pair < ROPE // 2
    angle = tl.load(positions + token).to(tl.int64) * (ROPE // 2) + pair
    cosine = tl.load(cos + angle, mask=is_pair, other=0.0)[None, :]
    sine = tl.load(sin + angle, mask=is_pair, other=0.0)[None, :]
    at = heads + (token * num_heads + head)[:, None] * WIDTH + WIDTH - ROPE + 2 * pair[None, :]
    is_there = (head < num_heads)[:, None] & is_pair[None, :]
    even = tl.load(at, mask=is_there, other=0.0)
    odd = tl.load(at + 1, mask=is_there, other=0.0)
    tl.store(at, even * cosine + odd * sine, mask=is_there)
    tl.store(at + 1, odd * cosine - even * sine, mask=is_there)


@triton.jit
def _added(
    most,
    sum_of,
    total,
    values,
    gates,
    offset,
    begin,
    end,
    place,
    is_there,
    VALUE_STRIDE: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    OFFSET_STRIDE: tl.constexpr,
    RATIO: tl.constexpr,
):
    """A softmax, as maximum, sum and total, with tokens begin … end - 1 in addition, the first of which has this place
    in its entry. values, gates, offset: the addresses of the first token's columns."""
    for token in range(begin, end):
        gate = tl.load(gates + token * GATE_STRIDE, mask=is_there, other=0.0)
        gate += tl.load(offset + (place + token - begin) % RATIO * OFFSET_STRIDE, mask=is_there, other=0.0)
        value = tl.load(values + token * VALUE_STRIDE, mask=is_there, other=0.0)
        peak = tl.maximum(most, gate)
        fade = tl.exp(most - peak)
        weight = tl.exp(gate - peak)
        sum_of = sum_of * fade + weight
        total = total * fade + weight * value
        most = peak
    return most, sum_of, total


@triton.jit
def _kept(state, is_read, WIDTH: tl.constexpr):
    """A softmax at this address of a state; without tokens if not `is_read`."""
    most = tl.load(state, mask=is_read, other=0.0)
    sum_of = tl.load(state + WIDTH, mask=is_read, other=0.0)
    total = tl.load(state + 2 * WIDTH, mask=is_read, other=0.0)
    return tl.where(sum_of > 0.0, most, float("-inf")), sum_of, total


@triton.jit
def _entry(
    values,
    gates,
    offset,
    states,
    slot,
    first,
    end,
    position,
    begin,
    column,
    VALUE_STRIDE: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    RATIO: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The softmax of the entry whose first token has position `begin`, of the tokens up to end - 1 of a row. The row's
    first token has this position, and `slot` has the state before it."""
    is_there = column < WIDTH
    shift = (PARTS - 1) * WIDTH
    starts_inside = position >= begin
    is_read = (slot > 0) & (position >= begin - (PARTS - 1) * RATIO)
    part = tl.where(starts_inside, 0, PARTS - 1)
    state = states + (slot * PARTS + part) * (3 * WIDTH) + column
    most, sum_of, total = _kept(state, is_there & is_read, WIDTH)
    own = first + tl.maximum(begin - position, 0)
    if PARTS > 1:
        earlier = first + tl.maximum(begin - RATIO - position, 0)
        place = (position + earlier - first) % RATIO
        most, sum_of, total = _added(
            most,
            sum_of,
            total,
            values + column,
            gates + column,
            offset + column,
            earlier,
            own,
            place,
            is_there,
            VALUE_STRIDE,
            GATE_STRIDE,
            PARTS * WIDTH,
            RATIO,
        )
    return _added(
        most,
        sum_of,
        total,
        values + shift + column,
        gates + shift + column,
        offset + shift + column,
        own,
        end,
        (position + own - first) % RATIO,
        is_there,
        VALUE_STRIDE,
        GATE_STRIDE,
        PARTS * WIDTH,
        RATIO,
    )


@triton.jit
def complete_entries(
    values,  # float32 [T, PARTS * WIDTH], rows VALUE_STRIDE apart
    gates,  # the same, rows GATE_STRIDE apart
    offset,  # float32 [RATIO, PARTS * WIDTH]
    states,  # float32 [state slots, PARTS, 3, WIDTH]
    positions,  # int32 [T]
    owners,  # int32 [T], the row of each token
    row_begins,  # int32 [R + 1]
    before,  # int32 [R], the slot with the state before the row
    entries,  # float32 [T, WIDTH]
    VALUE_STRIDE: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    RATIO: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The entries that tokens complete, before they are normed. Grid: tokens, blocks of columns; tokens that complete
    none do nothing."""
    token = tl.program_id(0)
    position = tl.load(positions + token)
    if position % RATIO != RATIO - 1:
        return
    row = tl.load(owners + token)
    first, slot = tl.load(row_begins + row), tl.load(before + row).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    _, sum_of, total = _entry(
        values,
        gates,
        offset,
        states,
        slot,
        first,
        token + 1,
        position - (token - first),
        position + 1 - RATIO,
        column,
        VALUE_STRIDE,
        GATE_STRIDE,
        RATIO,
        PARTS,
        WIDTH,
    )
    tl.store(entries + token.to(tl.int64) * WIDTH + column, total / sum_of, mask=column < WIDTH)


@triton.jit
def _store_state(state, most, sum_of, total, is_stored, WIDTH: tl.constexpr):
    tl.store(state, tl.where(sum_of > 0.0, most, 0.0), mask=is_stored)
    tl.store(state + WIDTH, sum_of, mask=is_stored)
    tl.store(state + 2 * WIDTH, total, mask=is_stored)


@triton.jit
def _leave(
    values,
    gates,
    offset,
    states,
    read,
    written,
    first,
    end,
    position,
    column,
    VALUE_STRIDE: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    RATIO: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The state after tokens first … end - 1 of a row, the first of which has this position."""
    next_position = position + end - first
    begin = next_position - next_position % RATIO
    is_stored = (column < WIDTH) & (written > 0)
    most, sum_of, total = _entry(
        values,
        gates,
        offset,
        states,
        read,
        first,
        end,
        position,
        begin,
        column,
        VALUE_STRIDE,
        GATE_STRIDE,
        RATIO,
        PARTS,
        WIDTH,
    )
    to = states + written * (PARTS * 3 * WIDTH) + column
    if PARTS > 1:
        # Read before the first part is stored, which may be in the same slot.
        is_there = column < WIDTH
        next_state = states + (read * PARTS + 1) * (3 * WIDTH) + column
        next_most, next_sum, next_total = _kept(next_state, is_there & (read > 0) & (position >= begin), WIDTH)
        own = first + tl.maximum(begin - position, 0)
        next_most, next_sum, next_total = _added(
            next_most,
            next_sum,
            next_total,
            values + column,
            gates + column,
            offset + column,
            own,
            end,
            (position + own - first) % RATIO,
            is_there,
            VALUE_STRIDE,
            GATE_STRIDE,
            PARTS * WIDTH,
            RATIO,
        )
        _store_state(to + 3 * WIDTH, next_most, next_sum, next_total, is_stored, WIDTH)
    _store_state(to, most, sum_of, total, is_stored, WIDTH)


@triton.jit(do_not_specialize=["first_row"])
def leave_entries(
    values,  # float32 [T, PARTS * WIDTH], rows VALUE_STRIDE apart
    gates,  # the same, rows GATE_STRIDE apart
    offset,  # float32 [RATIO, PARTS * WIDTH]
    states,  # float32 [state slots, PARTS, 3, WIDTH]
    positions,  # int32 [T]
    row_begins,  # int32 [R + 1]
    before,  # int32 [R]
    after,  # int32 [R], the slot that gets the state after the row, if HAS_CHUNKS is false
    row_chunks,  # int32 [R + 1], the chunks that precede each row, if HAS_CHUNKS
    chunk_ends,  # int32 [C]
    chunk_slots,  # int32 [C], the slot that gets the state after the chunk; 0: none
    first_row,
    HAS_CHUNKS: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    RATIO: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The states after rows, or after their chunks. Runs after `complete_entries`, which reads the states that are
    replaced here. Grid: rows from the first one, blocks of columns."""
    row = first_row + tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(row_begins + row)
    position, read = tl.load(positions + first), tl.load(before + row).to(tl.int64)
    if HAS_CHUNKS:
        # The last chunk of a row alone may replace the state that the row reads.
        for chunk in range(tl.load(row_chunks + row), tl.load(row_chunks + row + 1)):
            end, slot = tl.load(chunk_ends + chunk), tl.load(chunk_slots + chunk).to(tl.int64)
            if slot > 0:
                _leave(
                    values,
                    gates,
                    offset,
                    states,
                    read,
                    slot,
                    first,
                    end,
                    position,
                    column,
                    VALUE_STRIDE,
                    GATE_STRIDE,
                    RATIO,
                    PARTS,
                    WIDTH,
                )
    else:
        end, slot = tl.load(row_begins + row + 1), tl.load(after + row).to(tl.int64)
        _leave(
            values,
            gates,
            offset,
            states,
            read,
            slot,
            first,
            end,
            position,
            column,
            VALUE_STRIDE,
            GATE_STRIDE,
            RATIO,
            PARTS,
            WIDTH,
        )
