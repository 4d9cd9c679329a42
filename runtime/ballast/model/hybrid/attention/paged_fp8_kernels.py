"""Triton kernels for paged causal attention over a cache in 8 bits; see paged_kernels.py and `ShortRows`.

Kernels load words of two codes of e4m3 and split them into the numbers at even and at odd places. So products on
tensor cores have two halves, whose tiles are loaded from shared memory like tiles of half precision. Codes become half
precision by shifts, which leaves a factor of 2⁻⁸; scales contain its inverse. Works on GPUs of any age.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.attention.paged_kernels import _first_key, _place, _share, _tile
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus

SPLIT_CODES = tl.constexpr(
    """{
        .reg .b32 even, odd, sign;
        shl.b32 even, $2, 7;
        shl.b32 sign, $2, 8;
        and.b32 even, even, 0x3f803f80;
        lop3.b32 $0, sign, 0x80008000, even, 0xea;
        shr.b32 odd, $2, 1;
        and.b32 odd, odd, 0x3f803f80;
        lop3.b32 $1, $2, 0x80008000, odd, 0xea;
    }"""
)
"""Two words of two codes each → the numbers at even places, and those at odd places: sign | exponent and mantissa."""


@triton.jit
def _split(words):
    """int16 words of two codes → (numbers at even places, at odd places) in half precision, times 2⁻⁸."""
    return tl.inline_asm_elementwise(
        SPLIT_CODES, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
    )


@triton.jit
def _weighed(scores, is_seen, peak, total):
    """(weights of the keys, factor of earlier sums, new peak, new total)."""
    scores = tl.where(is_seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.reduce(scores, 1, larger))
    # A row that has seen no key yet keeps -inf; -inf minus -inf would be NaN.
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    return weights, fade, new_peak, total * fade + tl.reduce(weights, 1, plus)


@triton.jit
def _store_sums(sums, peaks, even, odd, peak, total, place, has_row, of_half, in_half, V_DIM: tl.constexpr):
    """Store a split's averages [ROWS, V_DIM], given as sums of even and odd places, and its weight."""
    has_seen = total > 0.0
    safe_total = tl.where(has_seen, total, 1.0)
    kept = has_row[:, None] & in_half[None, :]
    out = sums + place[:, None] * V_DIM + 2 * of_half[None, :]
    tl.store(out, even / safe_total[:, None], mask=kept)
    tl.store(out + 1, odd / safe_total[:, None], mask=kept)
    tl.store(peaks + place, tl.where(has_seen, peak + tl.log2(safe_total), float("-inf")), mask=has_row)


@triton.jit(do_not_specialize=["num_rows", "group", "max_blocks", "num_splits"])
def attend_heads(
    query,  # float32 [rows, KEY]
    words,  # int16 [slots, ROW_WORDS]: codes of keys by head, then of values by head
    scales,  # float32 [slots, ROW_WORDS / 2], the same memory: behind the codes, scales of keys and of values by head
    tiles,  # as for `attend`, also the following
    begins,
    lens,
    blocks,
    sinks,
    sums,
    peaks,
    scale,
    num_rows,
    group,
    max_blocks,
    num_splits,
    BLOCK_TOKENS: tl.constexpr,
    ROW_WORDS: tl.constexpr,
    KEY: tl.constexpr,
    V_DIM: tl.constexpr,
    PADDED_KEY: tl.constexpr,  # of half a key
    PADDED_V: tl.constexpr,  # of half a value
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """As `attend`, for heads."""
    wait_for_previous()
    request, begin, first_row, num_request_rows, first_sees, num_keys = _tile(tiles, begins, lens, group, ROWS)
    split, head, num_heads = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
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
    in_key = of_key < KEY // 2
    in_value = of_value < V_DIM // 2
    row = _place(begin, own_row, group)
    has_query = has_row[:, None] & in_key[None, :]
    row_query = query + row[:, None] * KEY + 2 * of_key[None, :]
    even_query = (tl.load(row_query, mask=has_query, other=0.0) * scale).to(tl.float16)
    odd_query = (tl.load(row_query + 1, mask=has_query, other=0.0) * scale).to(tl.float16)
    keys = words + head * (KEY // 2)
    values = words + num_heads * (KEY // 2) + head * (V_DIM // 2)
    own_scales = scales + num_heads * (KEY + V_DIM) // 4 + head

    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + head * group + own_row % group, mask=has_row, other=0.0)
        peak = tl.where(split == 0, sink * 1.4426950408889634, peak)  # base 2
        total = tl.where(split == 0, 1.0, total)
    even = tl.full((ROWS, PADDED_V), 0.0, tl.float32)
    odd = tl.full((ROWS, PADDED_V), 0.0, tl.float32)
    for first in range(first_key, end_key, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = key < end_key
        block = tl.load(blocks + request * max_blocks + key // BLOCK_TOKENS, mask=is_key, other=0)
        slot = block.to(tl.int64) * BLOCK_TOKENS + key % BLOCK_TOKENS
        place = slot[:, None] * ROW_WORDS
        key_words = tl.load(keys + place + of_key[None, :], mask=is_key[:, None] & in_key[None, :], other=0)
        value_words = tl.load(values + place + of_value[None, :], mask=is_key[:, None] & in_value[None, :], other=0)
        key_scale = tl.load(own_scales + slot * (ROW_WORDS // 2), mask=is_key, other=0.0) * 256.0
        value_scale = tl.load(own_scales + num_heads + slot * (ROW_WORDS // 2), mask=is_key, other=0.0) * 256.0
        even_key, odd_key = _split(key_words)
        scores = tl.dot(even_query, tl.trans(even_key))
        scores = tl.dot(odd_query, tl.trans(odd_key), scores) * key_scale[None, :]
        is_seen = is_key[None, :] & (key[None, :] < seen[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (key[None, :] >= seen[:, None] - WINDOW)
        weights, fade, peak, total = _weighed(scores, is_seen, peak, total)
        even_value, odd_value = _split(value_words)
        # At most 2¹⁵: see `LARGEST` of short_rows.py.
        scaled = (weights * value_scale[None, :]).to(tl.float16)
        even = tl.dot(scaled, even_value, even * fade[:, None])
        odd = tl.dot(scaled, odd_value, odd * fade[:, None])
    place = split.to(tl.int64) * num_rows + row
    _store_sums(sums, peaks, even, odd, peak, total, place, has_row, of_value, in_value, V_DIM)


@triton.jit(do_not_specialize=["num_rows", "group", "max_blocks", "num_splits"])
def attend_latents(
    query,  # [rows, RANK + ROPE], float32; if IS_ROUNDED, as `round_query` returns it
    words,  # int16 [slots, ROW_WORDS]: codes of latents
    scales,  # float32 [slots, ROW_WORDS / 2], the same memory: behind the codes, a scale of each part
    ropes,  # bfloat16 [slots, ROW_WORDS], the same memory: behind the scales, the rotated key
    tiles,  # as for `attend`, also the following
    begins,
    lens,
    blocks,
    sums,
    peaks,
    scale,
    num_rows,
    group,
    max_blocks,
    num_splits,
    BLOCK_TOKENS: tl.constexpr,
    ROW_WORDS: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,  # of equal width, which share a scale
    ROPE: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
):
    """As `attend`, for latents whose rank is a power of two, and so is the number of parts. All heads are one group."""
    wait_for_previous()
    request, begin, first_row, num_request_rows, first_sees, num_keys = _tile(tiles, begins, lens, group, ROWS)
    split = tl.program_id(1)
    own_row = first_row + tl.arange(0, ROWS)
    has_row = own_row < num_request_rows
    seen = first_sees + own_row // group
    share = _share(num_keys, num_splits, KEYS)
    first_key = split * share
    end_key = tl.minimum(first_key + share, num_keys)
    if first_key >= end_key:
        return

    of_half = tl.arange(0, RANK // 2)
    of_part = tl.arange(0, PARTS)
    of_rope = tl.arange(0, PADDED_ROPE)
    in_rope = of_rope < ROPE
    row = _place(begin, own_row, group)
    row_query = query + row[:, None] * (RANK + ROPE)
    even_query = tl.load(row_query + 2 * of_half[None, :], mask=has_row[:, None], other=0.0)
    odd_query = tl.load(row_query + 2 * of_half[None, :] + 1, mask=has_row[:, None], other=0.0)
    rope_query = tl.load(row_query + RANK + of_rope[None, :], mask=has_row[:, None] & in_rope[None, :], other=0.0)
    if not IS_ROUNDED:
        even_query = (even_query * scale).to(tl.float16)
        odd_query = (odd_query * scale).to(tl.float16)
        rope_query = (rope_query * scale).to(tl.float16)

    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    even = tl.full((ROWS, RANK // 2), 0.0, tl.float32)
    odd = tl.full((ROWS, RANK // 2), 0.0, tl.float32)
    for first in range(first_key, end_key, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = key < end_key
        block = tl.load(blocks + request * max_blocks + key // BLOCK_TOKENS, mask=is_key, other=0)
        place = (block.to(tl.int64) * BLOCK_TOKENS + key % BLOCK_TOKENS)[:, None]
        key_words = tl.load(words + place * ROW_WORDS + of_half[None, :], mask=is_key[:, None], other=0)
        own_scales = scales + place * (ROW_WORDS // 2) + RANK // 4 + of_part[None, :]
        part_scale = tl.load(own_scales, mask=is_key[:, None], other=0.0) * 256.0
        own_rope = ropes + place * ROW_WORDS + RANK // 2 + 2 * PARTS + of_rope[None, :]
        rope_key = tl.load(own_rope, mask=is_key[:, None] & in_rope[None, :], other=0.0).to(tl.float16)
        # Powers of two of at most 2¹⁵: see `LARGEST` of short_rows.py.
        part_scale = part_scale.to(tl.float16)[:, :, None]
        number_scale = tl.reshape(tl.broadcast_to(part_scale, (KEYS, PARTS, RANK // 2 // PARTS)), (KEYS, RANK // 2))
        even_key, odd_key = _split(key_words)
        even_key *= number_scale
        odd_key *= number_scale
        scores = tl.dot(even_query, tl.trans(even_key))
        scores = tl.dot(odd_query, tl.trans(odd_key), scores)
        scores = tl.dot(rope_query, tl.trans(rope_key), scores)
        is_seen = is_key[None, :] & (key[None, :] < seen[:, None])
        weights, fade, peak, total = _weighed(scores, is_seen, peak, total)
        rounded = weights.to(tl.float16)
        even = tl.dot(rounded, even_key, even * fade[:, None])
        odd = tl.dot(rounded, odd_key, odd * fade[:, None])
    place = split.to(tl.int64) * num_rows + row
    _store_sums(sums, peaks, even, odd, peak, total, place, has_row, of_half, of_half < RANK // 2, RANK)
