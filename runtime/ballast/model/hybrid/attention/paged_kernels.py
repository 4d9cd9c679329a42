"""Triton kernels for paged causal attention. They support heads of any size, latent or not, and both prompts and single
tokens.

With a window, a row sees only the last tokens of those that it would see otherwise. A sink is a further score of every
row, whose value is 0: it is part of the first split.

A row is one head of one token. The heads that share a head of the cache form a group; a group's rows of one request are
consecutive, token by token. A program computes a tile of a group's rows of one request over a fraction (split) of the
visible tokens; the results of the splits are merged afterwards. Lengths and blocks are read from device memory, so that
a captured launch serves every step. Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import ceil_div
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus


@triton.jit
def _share(num_keys, num_splits, KEYS: tl.constexpr):
    """Number of tokens of one split: a multiple of KEYS."""
    return ceil_div(ceil_div(num_keys, KEYS), num_splits) * KEYS


@triton.jit
def _first_key(first_row, first_sees, group, WINDOW: tl.constexpr, KEYS: tl.constexpr):
    """The first token that a tile reads: a multiple of KEYS, at most the first one that its first row sees."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(first_sees + first_row // group - WINDOW, 0) // KEYS * KEYS
    return first


@triton.jit
def _tile(tiles, begins, lens, group, ROWS: tl.constexpr):
    """(request, tokens of the step before the request's, first row of the tile, rows of the request and group, tokens
    visible to the first row, tokens visible to the last row) of a tile."""
    request = tl.load(tiles + 2 * tl.program_id(0))
    first_row = tl.load(tiles + 2 * tl.program_id(0) + 1)
    begin = tl.load(begins + request)
    num_tokens = tl.load(begins + request + 1) - begin
    num_request_rows = num_tokens * group
    first_sees = tl.load(lens + request) - num_tokens + 1
    last_row = tl.minimum(first_row + ROWS, num_request_rows) - 1
    return request, begin, first_row, num_request_rows, first_sees, first_sees + last_row // group


@triton.jit
def _place(begin, own_row, group):
    """Indices of a tile's rows in the step's [tokens, heads]; the third axis of the grid is heads of the cache."""
    token = begin.to(tl.int64) + own_row // group
    return token * (group * tl.num_programs(2)) + tl.program_id(2) * group + own_row % group


@triton.jit(do_not_specialize=["num_numbers"])
def round_query(
    query,  # float32 [num_numbers]
    rounded,  # [num_numbers], of the cache's type
    scale,
    num_numbers,
    SIZE: tl.constexpr,
):
    """Multiply by scale and round, for kernels of long rows. If queries were rounded in the kernel's registers, they
    would not be read from shared memory for the multiplication, and would leave too few registers for consecutive
    products."""
    wait_for_previous()
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    is_there = at < num_numbers
    number = tl.load(query + at, mask=is_there, other=0.0) * scale
    tl.store(rounded + at, number.to(rounded.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["num_rows", "group", "max_blocks", "num_splits"])
def attend(
    query,  # [rows, KEY + MORE_KEY], float32; if IS_ROUNDED, as `round_query` returns it
    cache,  # [slots, ROW_WIDTH]: keys by head from 0, values by head from VALUES_AT; 0: a value is the start of its key
    tiles,  # int32 [tiles, 2]: a request, and the first of its rows
    begins,  # int32 [requests + 1], tokens of the step that precede each request
    lens,  # int32 [requests], tokens visible to the request's last token
    blocks,  # int32 [requests, max_blocks]
    sinks,  # float32 [heads], if HAS_SINKS
    sums,  # float32 [splits, rows, V_DIM], the average of values of each split
    peaks,  # float32 [splits, rows], base-2 logarithms of the splits' weights
    scale,  # of scores, times log2(e)
    num_rows,  # of all heads
    group,
    max_blocks,
    num_splits,
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
    IS_ROUNDED: tl.constexpr,
    WINDOW: tl.constexpr,  # tokens that a row sees, its own the last; 0: all
    HAS_SINKS: tl.constexpr,
):
    """Attend to one split of the tokens. A split without tokens writes nothing."""
    wait_for_previous()
    request, begin, first_row, num_request_rows, first_sees, num_keys = _tile(tiles, begins, lens, group, ROWS)
    split = tl.program_id(1)
    own_row = first_row + tl.arange(0, ROWS)
    has_row = own_row < num_request_rows
    seen = first_sees + own_row // group
    begin_key = _first_key(first_row, first_sees, group, WINDOW, KEYS)
    share = _share(num_keys - begin_key, num_splits, KEYS)
    first_key = begin_key + split * share
    end_key = tl.minimum(first_key + share, num_keys)
    if first_key >= end_key:
        return

    of_key = tl.arange(0, PADDED_KEY)
    of_value = tl.arange(0, PADDED_V)
    in_key = of_key < KEY
    in_value = of_value < V_DIM
    row = _place(begin, own_row, group)
    row_query = query + row[:, None] * (KEY + MORE_KEY)
    own_query = tl.load(row_query + of_key[None, :], mask=has_row[:, None] & in_key[None, :], other=0.0)
    if not IS_ROUNDED:
        own_query = (own_query * scale).to(cache.dtype.element_ty)
    if MORE_KEY > 0:
        of_more = tl.arange(0, PADDED_MORE)
        in_more = of_more < MORE_KEY
        more_query = tl.load(row_query + KEY + of_more[None, :], mask=has_row[:, None] & in_more[None, :], other=0.0)
        if not IS_ROUNDED:
            more_query = (more_query * scale).to(cache.dtype.element_ty)
    keys = cache + tl.program_id(2) * (KEY + MORE_KEY)
    values = cache + VALUES_AT + tl.program_id(2) * V_DIM

    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + tl.program_id(2) * group + own_row % group, mask=has_row, other=0.0)
        peak = tl.where(split == 0, sink * 1.4426950408889634, peak)  # base 2
        total = tl.where(split == 0, 1.0, total)
    attended = tl.full((ROWS, PADDED_V), 0.0, tl.float32)
    for first in range(first_key, end_key, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = key < end_key
        block = tl.load(blocks + request * max_blocks + key // BLOCK_TOKENS, mask=is_key, other=0)
        slot = (block.to(tl.int64) * BLOCK_TOKENS + key % BLOCK_TOKENS)[:, None] * ROW_WIDTH
        own_key = tl.load(keys + slot + of_key[None, :], mask=is_key[:, None] & in_key[None, :], other=0.0)
        if MORE_KEY > 0:
            more_key = tl.load(keys + slot + KEY + of_more[None, :], mask=is_key[:, None] & in_more[None, :], other=0.0)
        if VALUES_AT > 0:
            value = tl.load(values + slot + of_value[None, :], mask=is_key[:, None] & in_value[None, :], other=0.0)
        else:
            value = own_key
        scores = tl.dot(own_query, tl.trans(own_key), input_precision="tf32x3")
        if MORE_KEY > 0:
            scores = tl.dot(more_query, tl.trans(more_key), scores, input_precision="tf32x3")
        is_seen = is_key[None, :] & (key[None, :] < seen[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (key[None, :] >= seen[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.reduce(scores, 1, larger))
        # A row that has seen no key yet keeps -inf; -inf minus -inf would be NaN.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.reduce(weights, 1, plus)
        attended = tl.dot(weights.to(value.dtype), value, attended * fade[:, None], input_precision="tf32x3")
        peak = new_peak

    has_seen = total > 0.0
    safe_total = tl.where(has_seen, total, 1.0)
    place = split.to(tl.int64) * num_rows + row
    kept = has_row[:, None] & in_value[None, :]
    tl.store(sums + place[:, None] * V_DIM + of_value[None, :], attended / safe_total[:, None], mask=kept)
    tl.store(peaks + place, tl.where(has_seen, peak + tl.log2(safe_total), float("-inf")), mask=has_row)


@triton.jit(do_not_specialize=["num_rows", "group", "num_splits"])
def merge(
    sums,  # as `attend` writes them
    peaks,
    tiles,  # as for `attend`
    begins,
    lens,
    attended,  # float32 [rows, V_DIM]
    num_rows,
    group,
    num_splits,
    WINDOW: tl.constexpr,
    V_DIM: tl.constexpr,
    PADDED_V: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Merge the splits. One program per row of a tile."""
    wait_for_previous()
    _, begin, first_row, num_request_rows, first_sees, num_keys = _tile(tiles, begins, lens, group, ROWS)
    own_row = first_row + tl.program_id(1)
    if own_row >= num_request_rows:
        return
    num_keys -= _first_key(first_row, first_sees, group, WINDOW, KEYS)
    used = ceil_div(num_keys, _share(num_keys, num_splits, KEYS))

    row = _place(begin, own_row, group)
    of_value = tl.arange(0, PADDED_V)
    in_value = of_value < V_DIM
    # A row's window may begin in a later split than that of the tile's first row.
    peak = tl.load(peaks + row)
    total = tl.where(peak == float("-inf"), 0.0, 1.0)
    result = tl.load(sums + row * V_DIM + of_value, mask=in_value, other=0.0)
    for split in range(1, used):
        place = split * num_rows.to(tl.int64) + row
        other = tl.load(peaks + place)
        new_peak = tl.maximum(peak, other)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        fade = tl.exp2(peak - base)
        weight = tl.exp2(other - base)
        result = result * fade + weight * tl.load(sums + place * V_DIM + of_value, mask=in_value, other=0.0)
        total = total * fade + weight
        peak = new_peak
    tl.store(attended + row * V_DIM + of_value, result / total, mask=in_value)
