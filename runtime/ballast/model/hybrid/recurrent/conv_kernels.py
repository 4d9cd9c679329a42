"""Triton kernels of the short convolution. Its state is the last TAPS - 1 inputs of a sequence.

Slot 0 reads as zeros, and what is written to it is lost.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import silu


@triton.jit
def convolve_one_each(
    x,  # float32 [R, CHANNELS], rows X_STRIDE apart
    weights,  # float32 [TAPS, CHANNELS]
    states,  # float32 [slots, TAPS - 1, CHANNELS]
    before,  # int32 [R], the slot that each row reads
    after,  # int32 [R], the slot that it writes; may be the same
    out,  # float32 [R, CHANNELS]
    CHANNELS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token of each row. Grid: rows, blocks of channels."""
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = channel < CHANNELS
    read, written = tl.load(before + row).to(tl.int64), tl.load(after + row).to(tl.int64)
    own = states + read * ((TAPS - 1) * CHANNELS) + channel
    left = states + written * ((TAPS - 1) * CHANNELS) + channel
    sums = tl.full((BLOCK,), 0.0, tl.float32)
    for tap in tl.static_range(TAPS - 1):
        # Inputs move to earlier places only, so a state may be replaced in place.
        value = tl.load(own + tap * CHANNELS, mask=is_there & (read > 0), other=0.0)
        if tap > 0:
            tl.store(left + (tap - 1) * CHANNELS, value, mask=is_there & (written > 0))
        sums += value * tl.load(weights + tap * CHANNELS + channel, mask=is_there, other=0.0)
    value = tl.load(x + row * X_STRIDE + channel, mask=is_there, other=0.0)
    tl.store(left + (TAPS - 2) * CHANNELS, value, mask=is_there & (written > 0))
    sums += value * tl.load(weights + (TAPS - 1) * CHANNELS + channel, mask=is_there, other=0.0)
    tl.store(out + row * CHANNELS + channel, silu(sums), mask=is_there)


@triton.jit
def convolve(
    x,  # float32 [T, CHANNELS], rows X_STRIDE apart
    weights,  # float32 [TAPS, CHANNELS]
    states,  # float32 [slots, TAPS - 1, CHANNELS]
    row_begins,  # int32 [R + 1]
    before,  # int32 [R]
    chunk_rows,  # int32 [C]
    chunk_begins,  # int32 [C]
    chunk_ends,  # int32 [C]
    out,  # float32 [T, CHANNELS]
    CHANNELS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    TOKENS: tl.constexpr,  # of a chunk, at most
    BLOCK: tl.constexpr,
):
    """All tokens of chunks; writes no states. Grid: chunks, blocks of channels."""
    chunk = tl.program_id(0)
    channel = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    row = tl.load(chunk_rows + chunk)
    first, slot = tl.load(row_begins + row), tl.load(before + row).to(tl.int64)
    token = (tl.load(chunk_begins + chunk) + tl.arange(0, TOKENS))[:, None]
    is_there = (token < tl.load(chunk_ends + chunk)) & (channel < CHANNELS)
    kept = states + slot * ((TAPS - 1) * CHANNELS) + channel
    sums = tl.full((TOKENS, BLOCK), 0.0, tl.float32)
    for tap in tl.static_range(TAPS):
        source = token - (TAPS - 1) + tap
        is_new = source >= first
        at = x + source.to(tl.int64) * X_STRIDE + channel
        value = tl.load(at, mask=is_there & is_new, other=0.0)
        earlier = kept + (source - first + TAPS - 1) * CHANNELS
        value += tl.load(earlier, mask=is_there & (source < first) & (slot > 0), other=0.0)
        sums += value * tl.load(weights + tap * CHANNELS + channel, mask=channel < CHANNELS, other=0.0)
    tl.store(out + token.to(tl.int64) * CHANNELS + channel, silu(sums), mask=is_there)


@triton.jit(do_not_specialize=["first_row"])
def keep_inputs(
    x,  # float32 [T, CHANNELS], rows X_STRIDE apart
    states,  # float32 [slots, TAPS - 1, CHANNELS]
    row_begins,  # int32 [R + 1]
    before,  # int32 [R]
    row_chunks,  # int32 [R + 1], the chunks that precede each row
    chunk_ends,  # int32 [C]
    chunk_slots,  # int32 [C], the slot that gets the state after the chunk; 0: none
    first_row,
    CHANNELS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The states after chunks. Runs after `convolve`, which reads the states that are replaced here. Grid: rows from
    the first one, blocks of channels."""
    row = first_row + tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = channel < CHANNELS
    first, read = tl.load(row_begins + row), tl.load(before + row).to(tl.int64)
    own = states + read * ((TAPS - 1) * CHANNELS) + channel
    # The last chunk of a row alone may replace the state that the row reads.
    for chunk in range(tl.load(row_chunks + row), tl.load(row_chunks + row + 1)):
        slot, end = tl.load(chunk_slots + chunk).to(tl.int64), tl.load(chunk_ends + chunk)
        if slot > 0:
            for place in tl.static_range(TAPS - 1):
                source = end - (TAPS - 1) + place
                at = x + source.to(tl.int64) * X_STRIDE + channel
                value = tl.load(at, mask=is_there & (source >= first), other=0.0)
                earlier = own + (source - first + TAPS - 1) * CHANNELS
                value += tl.load(earlier, mask=is_there & (source < first) & (read > 0), other=0.0)
                tl.store(states + (slot * (TAPS - 1) + place) * CHANNELS + channel, value, mask=is_there)
