"""Triton kernels of an indexer's keys where neighbouring tokens share one (GLM-5.3-Flash).

Pools of POOL tokens are counted from a request's first token. A pool's key is the mean of its tokens' keys, each entry
weighted by the softmax of the tokens' gates for it. The state of a request holds keys and gates of its last, incomplete
pool. Slot 0 of the states reads as no tokens, and what is written to it is lost.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_pools(
    keys,  # float32 [T, KEY]
    gates,  # float32 [T, KEY]
    offset,  # float32 [POOL, KEY], is added to gates
    states,  # float32 [state slots, POOL - 1, 2, KEY], keys and gates
    positions,  # int32 [T]
    slots,  # int32 [T]
    owners,  # int32 [T], the row of each token
    row_begins,  # int32 [R + 1]
    before,  # int32 [R], the slot with the state before the row
    pooled,  # [slots / POOL, KEY]
    KEY: tl.constexpr,
    POOL: tl.constexpr,
    PADDED_KEY: tl.constexpr,
):
    """The keys of complete pools. Grid: tokens, those that complete none do nothing."""
    token = tl.program_id(0)
    if tl.load(positions + token) % POOL != POOL - 1:
        return
    row = tl.load(owners + token)
    first, slot = tl.load(row_begins + row), tl.load(before + row).to(tl.int64)
    column = tl.arange(0, PADDED_KEY)
    is_there = column < KEY
    largest = tl.full((PADDED_KEY,), float("-inf"), tl.float32)
    for sweep in tl.static_range(2):
        total = tl.full((PADDED_KEY,), 0.0, tl.float32)
        weights = tl.full((PADDED_KEY,), 0.0, tl.float32)
        for index in tl.static_range(POOL):
            source = token - (POOL - 1) + index
            is_new = is_there & (source >= first)
            is_kept = is_there & (source < first) & (slot > 0)
            new = source.to(tl.int64) * KEY + column
            kept = states + (slot * (POOL - 1) + index) * (2 * KEY) + column
            gate = tl.load(gates + new, mask=is_new, other=0.0) + tl.load(kept + KEY, mask=is_kept, other=0.0)
            gate += tl.load(offset + index * KEY + column, mask=is_there, other=0.0)
            gate += tl.where((source < first) & (slot == 0), float("-inf"), 0.0)
            if sweep == 0:
                largest = tl.maximum(largest, gate)
            else:
                key = tl.load(keys + new, mask=is_new, other=0.0) + tl.load(kept, mask=is_kept, other=0.0)
                weight = tl.exp(gate - largest)
                weights += weight
                total += weight * key
    to = pooled + (tl.load(slots + token) // POOL).to(tl.int64) * KEY + column
    tl.store(to, (total / weights).to(pooled.dtype.element_ty), mask=is_there)


@triton.jit
def _leave(
    keys,
    gates,
    states,
    first,
    end,
    position,
    read,
    written,
    PARTS: tl.constexpr,
    KEY: tl.constexpr,
    POOL: tl.constexpr,
    PADDED_KEY: tl.constexpr,
):
    """The state after a row's tokens first … end - 1, the first of which has this position."""
    column = tl.arange(0, PADDED_KEY)
    is_there = column < KEY
    num_open = (position + end - first) % POOL
    for index in tl.static_range(POOL - 1):
        # Tokens keep their places in a pool, so a state may be replaced in place.
        source = end - num_open + index
        is_open = is_there & (index < num_open)
        is_new = is_open & (source >= first)
        is_kept = is_open & (source < first) & (read > 0)
        new = source.to(tl.int64) * KEY + column
        kept = states + (read * (POOL - 1) + index) * (PARTS * KEY) + column
        to = states + (written * (POOL - 1) + index) * (PARTS * KEY) + column
        key = tl.load(keys + new, mask=is_new, other=0.0) + tl.load(kept, mask=is_kept, other=0.0)
        tl.store(to, key, mask=is_there & (written > 0))
        if PARTS > 1:
            gate = tl.load(gates + new, mask=is_new, other=0.0) + tl.load(kept + KEY, mask=is_kept, other=0.0)
            tl.store(to + KEY, gate, mask=is_there & (written > 0))


@triton.jit(do_not_specialize=["first_row"])
def leave_pools(
    keys,  # float32 [T, KEY]
    gates,  # float32 [T, KEY], if PARTS is 2
    states,  # float32 [state slots, POOL - 1, PARTS, KEY]
    positions,  # int32 [T]
    row_begins,  # int32 [R + 1]
    before,  # int32 [R]
    after,  # int32 [R], the slot that gets the state after the row, if HAS_CHUNKS is false
    row_chunks,  # int32 [R + 1], the chunks that precede each row, if HAS_CHUNKS
    chunk_ends,  # int32 [C]
    chunk_slots,  # int32 [C], the slot that gets the state after the chunk; 0: none
    first_row,
    HAS_CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,  # 2: keys and gates; 1: keys
    KEY: tl.constexpr,
    POOL: tl.constexpr,
    PADDED_KEY: tl.constexpr,
):
    """The states after rows, or after their chunks. Runs after `write_pools` or `write_means`, which read the states
    that are replaced here. Grid: rows from the first one."""
    row = first_row + tl.program_id(0)
    first, end = tl.load(row_begins + row), tl.load(row_begins + row + 1)
    position, read = tl.load(positions + first), tl.load(before + row).to(tl.int64)
    if HAS_CHUNKS:
        # The last chunk of a row alone may replace the state that the row reads.
        for chunk in range(tl.load(row_chunks + row), tl.load(row_chunks + row + 1)):
            end, slot = tl.load(chunk_ends + chunk), tl.load(chunk_slots + chunk).to(tl.int64)
            _leave(keys, gates, states, first, end, position, read, slot, PARTS, KEY, POOL, PADDED_KEY)
    else:
        slot = tl.load(after + row).to(tl.int64)
        _leave(keys, gates, states, first, end, position, read, slot, PARTS, KEY, POOL, PADDED_KEY)
