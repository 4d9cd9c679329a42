"""Triton kernels of the gated delta rule with a decay for each row of a state (arXiv 2510.26692): what precedes it, and
the parts of a chunk that do not depend on the state.

The equations are those of chunk_kernels.py, with c [tokens, KEY] and D a vector per pair of tokens: K Kᵀ ∘ D becomes
the sum over d of K[i, d] K[j, d] exp(c[i, d] - c[j, d]), diag(exp(c)) K becomes exp(c) ∘ K.

A chunk's decays may reach exp(-1000), so exp(-c) alone would overflow. Tokens are divided into blocks: for tokens of
different blocks, i in the later one, the sum from the end of j to the beginning of i's block and the sum from there to
i are taken separately. Both exponentials are at most 1. In a block, each pair has its own exponentials. Sums over parts
of a chunk are taken by additions alone: differences of sums of strong decays would be too inexact for weak ones.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.recurrent.chunk_kernels import inverse_below
from ballast.model.hybrid.shared_kernels.number_kernels import sigmoid, softplus
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus


@triton.jit
def prepare_rows(
    inputs,  # float32 [T, CHANNELS]: queries and keys, which are replaced by their norms, and values
    beta,  # float32, rows BETA_STRIDE apart
    alpha,  # float32, rows ALPHA_STRIDE apart
    rate,  # float32 [HEADS]
    rate_shift,  # float32 [HEADS, KEY]
    log_decays,  # float32 [T, HEADS, KEY]
    betas,  # float32 [T, HEADS]
    eps,
    query_scale,
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    CHANNELS: tl.constexpr,
    BETA_STRIDE: tl.constexpr,
    ALPHA_STRIDE: tl.constexpr,
    BOUND: tl.constexpr,  # below 0: the logarithm of a decay is BOUND * sigmoid(-rate * x), else rate * softplus(x)
    BLOCK: tl.constexpr,  # heads
):
    """Grid: tokens, blocks of heads."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = head < HEADS
    own = head[:, None] * KEY + tl.arange(0, KEY)[None, :]
    is_there = is_head[:, None]
    at = inputs + token * CHANNELS + own
    query = tl.load(at, mask=is_there, other=0.0)
    scale = query_scale / tl.sqrt(tl.reduce(query * query, 1, plus) + eps)
    tl.store(at, query * scale[:, None], mask=is_there)
    at += HEADS * KEY
    key = tl.load(at, mask=is_there, other=0.0)
    scale = 1.0 / tl.sqrt(tl.reduce(key * key, 1, plus) + eps)
    tl.store(at, key * scale[:, None], mask=is_there)
    weight = tl.load(beta + token * BETA_STRIDE + head, mask=is_head, other=0.0)
    tl.store(betas + token * HEADS + head, sigmoid(weight), mask=is_head)
    shifted = tl.load(alpha + token * ALPHA_STRIDE + own, mask=is_there, other=0.0)
    shifted += tl.load(rate_shift + own, mask=is_there, other=0.0)
    own_rate = tl.load(rate + head, mask=is_head, other=0.0)[:, None]
    decay = BOUND / (1.0 + tl.exp(own_rate * shifted)) if BOUND < 0 else own_rate * softplus(shifted)
    tl.store(log_decays + token * (HEADS * KEY) + own, decay, mask=is_there)


@triton.jit
def _sums_after(decay_at, num_tokens, STRIDE: tl.constexpr, KEY: tl.constexpr, BLOCK: tl.constexpr):
    """For each token of a block, the sum of the decays of the tokens after it [BLOCK, KEY]; the sum of all [KEY]."""
    row = tl.arange(0, BLOCK)[:, None]
    sums, total = tl.full((BLOCK, KEY), 0.0, tl.float32), tl.full((KEY,), 0.0, tl.float32)
    for token in range(BLOCK):
        decay = tl.load(decay_at + token * STRIDE, mask=token < num_tokens, other=0.0)
        sums += tl.where(row < token, decay[None, :], 0.0)
        total += decay
    return sums, total


@triton.jit
def score_blocks(
    inputs,  # float32 [T, CHANNELS], prepared
    log_decays,  # float32 [T, HEADS, KEY]
    betas,  # float32 [T, HEADS]
    chunk_begins,  # int32 [C]
    chunk_ends,  # int32 [C]
    overlaps,  # float32 [T, HEADS, TOKENS], rows of A of each token's chunk; what is above its blocks is not written
    scores,  # float32 [T, HEADS, TOKENS], the same of the part of Q Kᵀ ∘ D on and below the diagonal
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,  # tokens, whose number divides TOKENS
):
    """Grid: chunks, heads, blocks of a chunk."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    block = tl.program_id(2)
    begin, end = tl.load(chunk_begins + chunk) + block * BLOCK, tl.load(chunk_ends + chunk)
    if begin >= end:
        return
    place, of_key = tl.arange(0, BLOCK), tl.arange(0, KEY)
    row, column = place[:, None], place[None, :]
    is_there = begin + row < end
    first = begin.to(tl.int64)
    query_at = inputs + first * CHANNELS + head * KEY + of_key
    key_at = query_at + HEADS * KEY
    decay_at = log_decays + (first * HEADS + head) * KEY + of_key
    own = (first * HEADS + head) * TOKENS + (row * (HEADS * TOKENS) + column)
    query = tl.load(query_at[None, :] + row * CHANNELS, mask=is_there, other=0.0)
    key = tl.load(key_at[None, :] + row * CHANNELS, mask=is_there, other=0.0)
    beta = tl.load(betas + first * HEADS + head + row * HEADS, mask=is_there, other=0.0)
    score = tl.full((BLOCK, BLOCK), 0.0, tl.float32)
    overlap = tl.full((BLOCK, BLOCK), 0.0, tl.float32)
    # For each row, the sum of the decays of the tokens after `token` up to the row's.
    sums = tl.full((BLOCK, KEY), 0.0, tl.float32)
    for back in range(BLOCK):
        token = BLOCK - 1 - back
        has_token = begin + token < end
        other = tl.load(key_at + token * CHANNELS, mask=has_token, other=0.0)[None, :] * tl.exp(sums)
        of_query, of_row = tl.reduce(query * other, 1, plus), tl.reduce(key * other, 1, plus)
        score = tl.where((column == token) & (row >= token), of_query[:, None], score)
        overlap = tl.where((column == token) & (row > token), of_row[:, None], overlap)
        decay = tl.load(decay_at + token * (HEADS * KEY), mask=has_token, other=0.0)
        sums += tl.where(row >= token, decay[None, :], 0.0)
    tl.store(scores + own + block * BLOCK, score, mask=is_there)
    tl.store(overlaps + own + block * BLOCK, overlap * beta, mask=is_there)
    for above in range(block + 1, TOKENS // BLOCK):
        tl.store(scores + own + above * BLOCK, tl.full((BLOCK, BLOCK), 0.0, tl.float32), mask=is_there)
    grown = tl.exp(sums)
    query *= grown
    key *= grown
    between = tl.full((KEY,), 0.0, tl.float32)
    for back in range(1, block + 1):
        earlier = back * BLOCK
        after, total = _sums_after(decay_at - earlier * (HEADS * KEY), BLOCK, HEADS * KEY, KEY, BLOCK)
        other = tl.load(key_at[None, :] + (row - earlier) * CHANNELS)
        other = tl.trans(other * tl.exp(after + between[None, :]))
        score = tl.dot(query, other, input_precision="tf32x3")
        overlap = tl.dot(key, other, input_precision="tf32x3")
        tl.store(scores + own + (block - back) * BLOCK, score, mask=is_there)
        tl.store(overlaps + own + (block - back) * BLOCK, overlap * beta, mask=is_there)
        between += total


@triton.jit
def invert_chunks(
    overlaps,  # float32 [T, HEADS, TOKENS], replaced by rows of the inverse of I + A of each token's chunk
    chunk_begins,  # int32 [C]
    chunk_ends,  # int32 [C]
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Grid: chunks, heads."""
    chunk = tl.program_id(0)
    begin, end = tl.load(chunk_begins + chunk), tl.load(chunk_ends + chunk)
    place = tl.arange(0, TOKENS)
    row, column = place[:, None], place[None, :]
    is_there = begin + row < end
    own = (begin.to(tl.int64) * HEADS + tl.program_id(1)) * TOKENS + (row * (HEADS * TOKENS) + column)
    overlap = tl.load(overlaps + own, mask=is_there & (row > column), other=0.0)
    inverse = inverse_below(-overlap, end - begin, TOKENS)
    tl.store(overlaps + own, tl.where(row == column, 1.0, inverse), mask=is_there)


@triton.jit
def fade_chunks(
    inputs,  # float32 [T, CHANNELS], prepared; queries and keys are replaced by exp(c) ∘ Q and exp(c) ∘ K
    log_decays,  # float32 [T, HEADS, KEY], replaced by exp(c[-1] - c) ∘ K
    chunk_begins,  # int32 [C]
    chunk_ends,  # int32 [C]
    chunk_decays,  # float32 [C, HEADS, KEY], gets exp(c[-1])
    HEADS: tl.constexpr,
    KEY: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,  # tokens
):
    """Runs after `score_blocks`, which reads what is replaced here. Grid: chunks, heads."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(chunk_begins + chunk)
    num_tokens = tl.load(chunk_ends + chunk) - begin
    row, of_key = tl.arange(0, BLOCK)[:, None], tl.arange(0, KEY)
    first = begin.to(tl.int64)
    query_at = inputs + first * CHANNELS + head * KEY + of_key
    decay_at = log_decays + (first * HEADS + head) * KEY + of_key
    before = tl.full((KEY,), 0.0, tl.float32)
    for block in range(0, num_tokens, BLOCK):
        own_at = decay_at + block * (HEADS * KEY)
        after, total = _sums_after(own_at, num_tokens - block, HEADS * KEY, KEY, BLOCK)
        for later in range(block + BLOCK, num_tokens, BLOCK):
            later_at = decay_at[None, :] + (later + row) * (HEADS * KEY)
            decay = tl.load(later_at, mask=later + row < num_tokens, other=0.0)
            after += tl.reduce(decay, 0, plus)[None, :]
        is_there = block + row < num_tokens
        decay = tl.load(own_at[None, :] + row * (HEADS * KEY), mask=is_there, other=0.0)
        grown = tl.exp(tl.associative_scan(decay, 0, plus) + before[None, :])
        at = query_at[None, :] + (block + row) * CHANNELS
        query = tl.load(at, mask=is_there, other=0.0)
        key = tl.load(at + HEADS * KEY, mask=is_there, other=0.0)
        tl.store(at, query * grown, mask=is_there)
        tl.store(at + HEADS * KEY, key * grown, mask=is_there)
        tl.debug_barrier()  # all threads have read the decays that are replaced
        tl.store(own_at[None, :] + row * (HEADS * KEY), key * tl.exp(after), mask=is_there)
        before += total
    tl.store(chunk_decays + (chunk * HEADS + head) * KEY + of_key, tl.exp(before))
