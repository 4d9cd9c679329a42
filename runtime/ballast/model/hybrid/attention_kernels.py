"""Triton kernel of latent attention for requests that add one token: paged, and split along each request's tokens.

Lengths and blocks are read from device memory, so that a captured launch serves every step. Triton's built-in
operations only, as in panel_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _larger(left, right):
    return tl.maximum(left, right)


@triton.jit
def _plus(left, right):
    return left + right


@triton.jit
def decode_attention(
    query,  # float32 [T, heads, RANK + ROPE]
    cache,  # [slots, RANK + ROPE]
    rows,  # int32 [B], each request's token
    lens,  # int32 [B], tokens that it sees
    blocks,  # int32 [B, max_blocks]
    sums,  # float32 [splits, B, heads, RANK]
    peaks,  # float32 [splits, B, heads], logarithms of the weights that were divided out; -inf without a token
    scale,
    num_requests,
    num_heads,
    max_blocks,
    BLOCK_TOKENS: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    RANK_ROOM: tl.constexpr,
    ROPE_ROOM: tl.constexpr,
    SPLITS: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    request = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    split = tl.program_id(2)
    has_head = head < num_heads
    of_latent = tl.arange(0, RANK_ROOM)
    of_rope = tl.arange(0, ROPE_ROOM)
    in_latent = of_latent < RANK
    in_rope = of_rope < ROPE

    row = tl.load(rows + request).to(tl.int64)
    length = tl.load(lens + request)
    row_query = query + (row * num_heads + head[:, None]) * (RANK + ROPE)
    latent_query = tl.load(row_query + of_latent[None, :], mask=has_head[:, None] & in_latent[None, :], other=0.0)
    rope_query = tl.load(row_query + RANK + of_rope[None, :], mask=has_head[:, None] & in_rope[None, :], other=0.0)

    # Whole runs of TOKENS to each split.
    num_runs = (length + TOKENS - 1) // TOKENS
    runs_per_split = (num_runs + SPLITS - 1) // SPLITS
    begin = split * runs_per_split * TOKENS
    end = tl.minimum(begin + runs_per_split * TOKENS, length)
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.full((HEADS,), 0.0, tl.float32)
    attended = tl.full((HEADS, RANK_ROOM), 0.0, tl.float32)
    for first in range(begin, end, TOKENS):
        token = first + tl.arange(0, TOKENS)
        is_seen = token < end
        block = tl.load(blocks + request * max_blocks + token // BLOCK_TOKENS, mask=is_seen, other=0)
        slot = block.to(tl.int64) * BLOCK_TOKENS + token % BLOCK_TOKENS
        row_cache = cache + slot[:, None] * (RANK + ROPE)
        latent = tl.load(row_cache + of_latent[None, :], mask=is_seen[:, None] & in_latent[None, :], other=0.0)
        rope = tl.load(row_cache + RANK + of_rope[None, :], mask=is_seen[:, None] & in_rope[None, :], other=0.0)
        latent = latent.to(tl.float32)
        scores = tl.dot(latent_query, tl.trans(latent), input_precision=PRECISION)
        scores = tl.dot(rope_query, tl.trans(rope.to(tl.float32)), scores, input_precision=PRECISION)
        scores = tl.where(is_seen[None, :], scores * scale, float("-inf"))
        new_peak = tl.maximum(peak, tl.reduce(scores, 1, _larger))
        weights = tl.exp(scores - new_peak[:, None])
        fade = tl.exp(peak - new_peak)
        total = total * fade + tl.reduce(weights, 1, _plus)
        attended = tl.dot(weights, latent, attended * fade[:, None], input_precision=PRECISION)
        peak = new_peak

    place = (split * num_requests + request).to(tl.int64) * num_heads + head
    is_empty = begin >= end
    safe_total = tl.where(is_empty, 1.0, total)
    kept = has_head[:, None] & in_latent[None, :]
    tl.store(sums + place[:, None] * RANK + of_latent[None, :], attended / safe_total[:, None], mask=kept)
    logarithm = tl.where(is_empty, float("-inf"), peak + tl.log(safe_total))
    tl.store(peaks + place, logarithm, mask=has_head)
