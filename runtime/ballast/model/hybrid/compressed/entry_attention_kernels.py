"""Triton kernels of attention to the last keys of a request and to compressed entries (DeepSeek-V4). All heads of a
token share the rows that are gathered for it, which are keys and values. Heads have sinks.

A token's tiles of rows are those of its window, then those of entries. A program computes a tile of a token's heads
over a fraction (split) of these; the results of the splits are merged afterwards. Triton's built-in operations only:
see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.attention.split_kernels import merge_splits
from ballast.model.hybrid.shared_kernels.number_kernels import ceil_div
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus


@triton.jit
def _num_tiles(position, WINDOW: tl.constexpr, RATIO: tl.constexpr, TOP_K: tl.constexpr, KEYS: tl.constexpr):
    """(number of keys of the window, of entries, tiles of the first, of both). TOP_K 0: all entries are attended to."""
    num_keys = tl.minimum(position + 1, WINDOW)
    num_entries = 0
    if RATIO > 0:
        num_entries = (position + 1) // RATIO
        if TOP_K > 0:
            num_entries = tl.minimum(num_entries, TOP_K)
    key_tiles = ceil_div(num_keys, KEYS)
    return num_keys, num_entries, key_tiles, key_tiles + ceil_div(num_entries, KEYS)


@triton.jit
def _attended(query, rows, is_key, peak, total, attended):
    """The state of a softmax after a tile of rows."""
    scores = tl.dot(query, tl.trans(rows), input_precision="tf32x3")
    scores = tl.where(is_key[None, :], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.reduce(scores, 1, larger))
    weights = tl.exp2(scores - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    total = total * fade + tl.reduce(weights, 1, plus)
    attended = tl.dot(weights.to(rows.dtype), rows, attended * fade[:, None], input_precision="tf32x3")
    return new_peak, total, attended


@triton.jit(do_not_specialize=["num_heads", "max_blocks", "head_tiles"])
def attend(
    query,  # [T, heads, WIDTH], times the score scale and log2(e), in the type of the keys
    keys,  # [R * WINDOW + T, WIDTH], see `gather_window`
    entries,  # [E, WIDTH]
    chosen,  # int32 [T, TOP_K], if TOP_K
    sinks,  # float32 [heads]
    positions,  # int32 [T]
    owners,  # int32 [T], the row of each token
    blocks,  # int32 [R, max_blocks]
    sums,  # float32 [splits, T, heads, WIDTH], the average of rows of each split
    peaks,  # float32 [splits, T, heads], base-2 logarithms of the splits' weights
    num_heads,
    max_blocks,
    head_tiles,  # of a token's heads
    WINDOW: tl.constexpr,
    RATIO: tl.constexpr,  # tokens of an entry; 0: there are no entries
    TOP_K: tl.constexpr,
    ROW_TOKENS: tl.constexpr,  # tokens whose rows of the cache hold an entry
    BLOCK_TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Grid: tiles of tokens' heads, with a token's heads adjacent; splits. A split without tiles writes nothing."""
    token = (tl.program_id(0) // head_tiles).to(tl.int64)
    split = tl.program_id(1)
    num_keys, num_entries, key_tiles, num_tiles = _num_tiles(tl.load(positions + token), WINDOW, RATIO, TOP_K, KEYS)
    share = ceil_div(num_tiles, tl.num_programs(1))
    first_tile = split * share
    end_tile = tl.minimum(first_tile + share, num_tiles)
    if first_tile >= end_tile:
        return

    head = tl.program_id(0) % head_tiles * ROWS + tl.arange(0, ROWS)
    is_head = head < num_heads
    column = tl.arange(0, PADDED_WIDTH)
    in_width = column < WIDTH
    own_query = tl.load(
        query + (token * num_heads + head)[:, None] * WIDTH + column[None, :],
        mask=is_head[:, None] & in_width[None, :],
        other=0.0,
    )
    row = tl.load(owners + token)
    of_keys = tl.arange(0, KEYS)
    # The first split has the sink, whose weight is counted and whose value is 0.
    sink = tl.load(sinks + head, mask=is_head, other=0.0) * 1.4426950408889634
    peak = tl.where(split == 0, sink, float("-inf"))
    total = tl.where(split == 0, 1.0, 0.0) + tl.full((ROWS,), 0.0, tl.float32)
    attended = tl.full((ROWS, PADDED_WIDTH), 0.0, tl.float32)

    first_key = token + (row + 1) * WINDOW + 1 - num_keys
    for tile in range(first_tile, tl.minimum(end_tile, key_tiles)):
        place = tile * KEYS + of_keys
        is_key = place < num_keys
        own_rows = tl.load(
            keys + (first_key + place)[:, None] * WIDTH + column[None, :],
            mask=is_key[:, None] & in_width[None, :],
            other=0.0,
        )
        peak, total, attended = _attended(own_query, own_rows, is_key, peak, total, attended)
    if RATIO > 0:
        own_blocks = blocks + row.to(tl.int64) * max_blocks
        for tile in range(tl.maximum(first_tile, key_tiles), end_tile):
            place = (tile - key_tiles) * KEYS + of_keys
            is_entry = place < num_entries
            entry = place
            if TOP_K > 0:
                entry = tl.load(chosen + token * TOP_K + place, mask=is_entry, other=0)
            position = (entry + 1) * RATIO - ROW_TOKENS
            block = tl.load(own_blocks + position // BLOCK_TOKENS, mask=is_entry, other=0)
            at = (block.to(tl.int64) * BLOCK_TOKENS + position % BLOCK_TOKENS) // ROW_TOKENS
            own_rows = tl.load(
                entries + at[:, None] * WIDTH + column[None, :], mask=is_entry[:, None] & in_width[None, :], other=0.0
            )
            peak, total, attended = _attended(own_query, own_rows, is_entry, peak, total, attended)

    to = (split * (tl.num_programs(0) // head_tiles) + token) * num_heads + head
    kept = is_head[:, None] & in_width[None, :]
    tl.store(sums + to[:, None] * WIDTH + column[None, :], attended / total[:, None], mask=kept)
    tl.store(peaks + to, peak + tl.log2(total), mask=is_head)


@triton.jit(do_not_specialize=["num_splits"])
def merge(
    sums,  # as `attend` writes them
    peaks,
    positions,
    attended,  # float32 [T, heads, WIDTH]
    num_splits,
    WINDOW: tl.constexpr,
    RATIO: tl.constexpr,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,  # maximum splits, a power of two
    BLOCK: tl.constexpr,
):
    """Merge the splits. Grid: tokens, heads, blocks of columns."""
    position = tl.load(positions + tl.program_id(0).to(tl.int64))
    _, _, _, num_tiles = _num_tiles(position, WINDOW, RATIO, TOP_K, KEYS)
    num_used = ceil_div(num_tiles, ceil_div(num_tiles, num_splits))
    merge_splits(sums, peaks, attended, num_used, WIDTH, SPLITS, BLOCK)
