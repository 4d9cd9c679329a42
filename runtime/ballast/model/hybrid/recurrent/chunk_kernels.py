"""Triton kernels of the gated delta rule for chunks of a row's tokens (arXiv 2412.06464, section 3.3).

With c the running sums of a chunk's logarithmic decays, D[i, j] = exp(c[i] - c[j]) for i ≥ j, and the state S before
the chunk, the changes N [tokens, VALUE] of all tokens solve
(I + A) N = diag(beta) (V - diag(exp(c)) K S), where A is the part below the diagonal of diag(beta) (K Kᵀ ∘ D). Then
out = diag(exp(c)) Q S + (Q Kᵀ ∘ D) N, and the state after the chunk is exp(c[-1]) S + (diag(exp(c[-1] - c)) K)ᵀ N.

`solve_chunks` inverts I + A for all chunks together, `pass_chunks` carries the state from chunk to chunk. A difference
of sums is taken before its exponential, which is then at most 1. If each row of a state has a decay, the kernels of
row_decay_kernels.py do what `solve_chunks` does.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.recurrent.delta_kernels import key_head_of
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus


@triton.jit
def inverse_below(below, num_tokens, TOKENS: tl.constexpr):
    """The part below the diagonal of the inverse of I + A, given that of -A [TOKENS, TOKENS], by forward
    substitution: rows that are done are those of the inverse, the others those of -A."""
    row = tl.arange(0, TOKENS)[:, None]
    for done in range(1, num_tokens):
        new = tl.reduce(tl.where(row == done, below, 0.0), 0, plus)
        new += tl.reduce(new[:, None] * below, 0, plus)
        below = tl.where(row == done, new[None, :], below)
    return below


@triton.jit
def solve_chunks(
    inputs,  # float32 [T, CHANNELS], prepared
    log_decays,  # float32 [T, HEADS]
    betas,  # float32 [T, HEADS]
    chunk_begins,  # int32 [C]
    chunk_ends,  # int32 [C]
    inverses,  # float32 [T, HEADS, TOKENS], rows of the inverse of I + A of each token's chunk
    scores,  # float32 [T, HEADS, TOKENS], the same of the part of Q Kᵀ ∘ D on and below the diagonal
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    ALTERNATE: tl.constexpr,
    KEY: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Grid: chunks, heads."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    begin, end = tl.load(chunk_begins + chunk), tl.load(chunk_ends + chunk)
    place = tl.arange(0, TOKENS)
    is_there = begin + place < end
    first = begin.to(tl.int64)
    key_head = key_head_of(head, HEADS, KEY_HEADS, ALTERNATE)
    at = inputs + first * CHANNELS + key_head * KEY + (place[:, None] * CHANNELS + tl.arange(0, KEY)[None, :])
    query = tl.load(at, mask=is_there[:, None], other=0.0)
    key = tl.load(at + KEY_HEADS * KEY, mask=is_there[:, None], other=0.0)
    beta = tl.load(betas + first * HEADS + head + place * HEADS, mask=is_there, other=0.0)
    decay = tl.load(log_decays + first * HEADS + head + place * HEADS, mask=is_there, other=0.0)
    sums = tl.associative_scan(decay, 0, plus)
    row, column = place[:, None], place[None, :]
    # 0 above the diagonal, where the difference is positive.
    fade = tl.exp(tl.where(row >= column, sums[:, None] - sums[None, :], 0.0))
    own = (first * HEADS + head) * TOKENS + (row * (HEADS * TOKENS) + column)
    score = tl.dot(query, tl.trans(key), input_precision="tf32x3")
    tl.store(scores + own, tl.where(row >= column, score * fade, 0.0), mask=is_there[:, None])
    overlap = tl.dot(key, tl.trans(key), input_precision="tf32x3") * fade * beta[:, None]
    inverse = inverse_below(tl.where(row > column, -overlap, 0.0), end - begin, TOKENS)
    tl.store(inverses + own, tl.where(row == column, 1.0, inverse), mask=is_there[:, None])


@triton.jit(do_not_specialize=["first_row"])
def pass_chunks(
    inputs,  # float32 [T, CHANNELS], prepared, or as from `fade_chunks`
    log_decays,  # float32 [T, HEADS], or as from `fade_chunks`
    betas,  # float32 [T, HEADS]
    inverses,  # as from `solve_chunks`
    scores,
    chunk_decays,  # as from `fade_chunks`, if DECAYS_ROWS
    states,  # float32 [slots, HEADS, KEY, VALUE]
    before,  # int32 [R], the slot that each row reads
    row_chunks,  # int32 [R + 1], the chunks that precede each row
    chunk_begins,  # int32 [C]
    chunk_ends,  # int32 [C]
    chunk_slots,  # int32 [C], the slot that gets the state after the chunk; 0: none
    out,  # float32 [T, HEADS, VALUE]
    first_row,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    ALTERNATE: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHANNELS: tl.constexpr,
    DECAYS_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns, whose number divides VALUE
):
    """Grid: rows from the first one, heads, blocks of columns."""
    row = first_row + tl.program_id(0)
    head = tl.program_id(1)
    place, of_key = tl.arange(0, TOKENS), tl.arange(0, KEY)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    key_head = key_head_of(head, HEADS, KEY_HEADS, ALTERNATE)
    tile = head * (KEY * VALUE) + of_key[:, None] * VALUE + column[None, :]
    slot = tl.load(before + row).to(tl.int64)
    state = tl.load(states + slot * (HEADS * KEY * VALUE) + tile, mask=slot > 0, other=0.0)
    for chunk in range(tl.load(row_chunks + row), tl.load(row_chunks + row + 1)):
        begin = tl.load(chunk_begins + chunk)
        is_there = begin + place < tl.load(chunk_ends + chunk)
        first = begin.to(tl.int64)
        own = (first * HEADS + head) * TOKENS + (place[:, None] * (HEADS * TOKENS) + place[None, :])
        beta = tl.load(betas + first * HEADS + head + place * HEADS, mask=is_there, other=0.0)
        if DECAYS_ROWS:
            grown = 1.0  # in the inputs
            kept = tl.load(chunk_decays + (chunk * HEADS + head) * KEY + of_key)[:, None]
        else:
            decay = tl.load(log_decays + first * HEADS + head + place * HEADS, mask=is_there, other=0.0)
            sums, total = tl.associative_scan(decay, 0, plus), tl.reduce(decay, 0, plus)
            grown, kept = tl.exp(sums)[:, None], tl.exp(total)
        token_inputs = inputs + first * CHANNELS
        key_at = token_inputs + key_head * KEY + (place[:, None] * CHANNELS + of_key[None, :])
        key = tl.load(key_at + KEY_HEADS * KEY, mask=is_there[:, None], other=0.0)
        value_at = token_inputs + 2 * KEY_HEADS * KEY + head * VALUE + (place[:, None] * CHANNELS + column[None, :])
        value = tl.load(value_at, mask=is_there[:, None], other=0.0)
        change = (value - tl.dot(key, state, input_precision="tf32x3") * grown) * beta[:, None]
        inverse = tl.load(inverses + own, mask=is_there[:, None], other=0.0)
        change = tl.dot(inverse, change, input_precision="tf32x3")
        query = tl.load(key_at, mask=is_there[:, None], other=0.0)
        attended = tl.dot(query, state, input_precision="tf32x3") * grown
        score = tl.load(scores + own, mask=is_there[:, None], other=0.0)
        attended = tl.dot(score, change, attended, input_precision="tf32x3")
        out_at = out + (first * HEADS + head) * VALUE + (place[:, None] * (HEADS * VALUE) + column[None, :])
        tl.store(out_at, attended, mask=is_there[:, None])
        if DECAYS_ROWS:
            faded_at = log_decays + (first * HEADS + head) * KEY + (place[:, None] * (HEADS * KEY) + of_key[None, :])
            faded = tl.load(faded_at, mask=is_there[:, None], other=0.0)
        else:
            # Again, to keep fewer registers.
            key = tl.load(key_at + KEY_HEADS * KEY, mask=is_there[:, None], other=0.0)
            faded = key * tl.exp(total - sums)[:, None]
        state = tl.dot(tl.trans(faded), change, state * kept, input_precision="tf32x3")
        slot = tl.load(chunk_slots + chunk).to(tl.int64)
        tl.store(states + slot * (HEADS * KEY * VALUE) + tile, state, mask=slot > 0)
