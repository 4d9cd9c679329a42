"""Triton kernels of the last keys of a request (DeepSeek-V4), which are a state: position p is in row p % WINDOW.

Slot 0 reads as zeros, and nothing is written to it. Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def gather_window(
    key,  # float32 [T, WIDTH]
    window,  # float32 [state slots, WINDOW, WIDTH]
    positions,  # int32 [T]
    owners,  # int32 [T], the row of each token
    row_begins,  # int32 [R + 1]
    before,  # int32 [R], the slot with the state before the row
    keys,  # [R * WINDOW + T, WIDTH]
    num_rows,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """The keys of each row of a step: those of the WINDOW positions before it, and then its own. Grid: rows of `keys`
    that are earlier ones, and then tokens."""
    place = tl.program_id(0)
    column = tl.arange(0, PADDED_WIDTH)
    is_there = column < WIDTH
    num_earlier = num_rows * WINDOW
    if place < num_earlier:
        row, index = place // WINDOW, place % WINDOW
        first, slot = tl.load(row_begins + row), tl.load(before + row).to(tl.int64)
        position = tl.load(positions + first) + index
        at = window + (slot * WINDOW + position % WINDOW) * WIDTH + column
        values = tl.load(at, mask=is_there & (slot > 0) & (position >= WINDOW), other=0.0)
        to = first + place
    else:
        token = place - num_earlier
        values = tl.load(key + token.to(tl.int64) * WIDTH + column, mask=is_there, other=0.0)
        to = token + (tl.load(owners + token) + 1) * WINDOW
    tl.store(keys + to.to(tl.int64) * WIDTH + column, values.to(keys.dtype.element_ty), mask=is_there)


@triton.jit
def _leave(
    key,
    window,
    index,
    first,
    end,
    position,
    read,
    written,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """Row `index` of the state after tokens first … end - 1 of a row, the first of which has this position."""
    column = tl.arange(0, PADDED_WIDTH)
    is_there = column < WIDTH
    last = position + end - first - 1
    own = last - (last + WINDOW - index) % WINDOW
    is_new, is_kept = own >= position, (own >= 0) & (own < position) & (read > 0)
    # A row of the slot that is read keeps its key.
    is_stored = is_there & (written > 0) & (is_new | (written != read))
    token = (first + own - position).to(tl.int64)
    values = tl.load(key + token * WIDTH + column, mask=is_stored & is_new, other=0.0)
    values += tl.load(window + (read * WINDOW + index) * WIDTH + column, mask=is_stored & is_kept, other=0.0)
    tl.store(window + (written * WINDOW + index) * WIDTH + column, values, mask=is_stored)


@triton.jit(do_not_specialize=["first_row"])
def leave_window(
    key,  # float32 [T, WIDTH]
    window,  # float32 [state slots, WINDOW, WIDTH]
    positions,  # int32 [T]
    row_begins,  # int32 [R + 1]
    before,  # int32 [R]
    after,  # int32 [R], the slot that gets the state after the row, if HAS_CHUNKS is false
    row_chunks,  # int32 [R + 1], the chunks that precede each row, if HAS_CHUNKS
    chunk_ends,  # int32 [C]
    chunk_slots,  # int32 [C], the slot that gets the state after the chunk; 0: none
    first_row,
    HAS_CHUNKS: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """The states after rows, or after their chunks. Grid: rows from the first one, rows of a state."""
    row = first_row + tl.program_id(0)
    index = tl.program_id(1)
    first = tl.load(row_begins + row)
    position, read = tl.load(positions + first), tl.load(before + row).to(tl.int64)
    if HAS_CHUNKS:
        # The last chunk of a row alone may replace the state that the row reads.
        for chunk in range(tl.load(row_chunks + row), tl.load(row_chunks + row + 1)):
            end, slot = tl.load(chunk_ends + chunk), tl.load(chunk_slots + chunk).to(tl.int64)
            _leave(key, window, index, first, end, position, read, slot, WINDOW, WIDTH, PADDED_WIDTH)
    else:
        end, slot = tl.load(row_begins + row + 1), tl.load(after + row).to(tl.int64)
        _leave(key, window, index, first, end, position, read, slot, WINDOW, WIDTH, PADDED_WIDTH)
