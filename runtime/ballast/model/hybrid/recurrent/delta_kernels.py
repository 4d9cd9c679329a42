"""Triton kernels of the gated delta rule: what precedes it, one token of each row, and what follows it.

Per head, with a state S [KEY, VALUE], a query q, a key k, a value v, a beta, and a decay of the state or of each of its
rows: S *= decay; S += k ⊗ (beta * (v - k · S)); out = q · S. All numbers are float32. Slot 0 reads as zeros, and what
is written to it is lost.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import sigmoid, silu, softplus
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus


@triton.jit
def key_head_of(head, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, ALTERNATE: tl.constexpr):
    if ALTERNATE:
        return head % KEY_HEADS
    return head // (HEADS // KEY_HEADS)


@triton.jit
def prepare(
    inputs,  # [T, CHANNELS]: queries and keys, which are replaced by their norms, and values
    beta,  # rows BETA_STRIDE apart
    alpha,  # rows ALPHA_STRIDE apart
    rate,  # [HEADS]
    rate_shift,  # [HEADS]
    log_decays,  # [T, HEADS]
    betas,  # [T, HEADS]
    eps,
    query_scale,
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY: tl.constexpr,
    CHANNELS: tl.constexpr,
    BETA_STRIDE: tl.constexpr,
    ALPHA_STRIDE: tl.constexpr,
    GROUP: tl.constexpr,  # heads whose betas and then alphas follow each other; 0: betas and alphas are apart
    PADDED_HEADS: tl.constexpr,
    PADDED_KEY_HEADS: tl.constexpr,
):
    """Grid: tokens."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    key_head = tl.arange(0, PADDED_KEY_HEADS)[:, None]
    is_key = key_head < KEY_HEADS
    at = inputs + token * CHANNELS + key_head * KEY + tl.arange(0, KEY)[None, :]
    query = tl.load(at, mask=is_key, other=0.0)
    scale = query_scale / tl.sqrt(tl.reduce(query * query, 1, plus) + eps)
    tl.store(at, query * scale[:, None], mask=is_key)
    at += KEY_HEADS * KEY
    key = tl.load(at, mask=is_key, other=0.0)
    scale = 1.0 / tl.sqrt(tl.reduce(key * key, 1, plus) + eps)
    tl.store(at, key * scale[:, None], mask=is_key)
    head = tl.arange(0, PADDED_HEADS)
    is_head = head < HEADS
    place = head
    if GROUP > 0:
        place = head // GROUP * (2 * GROUP) + head % GROUP
    weight = tl.load(beta + token * BETA_STRIDE + place, mask=is_head, other=0.0)
    tl.store(betas + token * HEADS + head, sigmoid(weight), mask=is_head)
    shifted = tl.load(alpha + token * ALPHA_STRIDE + place, mask=is_head, other=0.0)
    shifted += tl.load(rate_shift + head, mask=is_head, other=0.0)
    decay = tl.load(rate + head, mask=is_head, other=0.0) * softplus(shifted)
    tl.store(log_decays + token * HEADS + head, decay, mask=is_head)


@triton.jit
def update_one_each(
    inputs,  # [R, CHANNELS], prepared
    log_decays,  # [R, HEADS], or [R, HEADS, KEY]
    betas,  # [R, HEADS]
    states,  # [slots, HEADS, KEY, VALUE]
    before,  # int32 [R], the slot that each row reads
    after,  # int32 [R], the slot that it writes; may be the same
    out,  # [R, HEADS, VALUE]
    HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    ALTERNATE: tl.constexpr,  # see `key_head_of`
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    CHANNELS: tl.constexpr,
    DECAYS_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns, whose number divides VALUE
):
    """One token of each row. Grid: rows, heads, blocks of columns."""
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    of_key = tl.arange(0, KEY)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    key_at = inputs + row * CHANNELS + key_head_of(head, HEADS, KEY_HEADS, ALTERNATE) * KEY + of_key
    query, key = tl.load(key_at), tl.load(key_at + KEY_HEADS * KEY)
    value = tl.load(inputs + row * CHANNELS + 2 * KEY_HEADS * KEY + head * VALUE + column)
    beta = tl.load(betas + row * HEADS + head)
    if DECAYS_ROWS:
        decay = tl.exp(tl.load(log_decays + (row * HEADS + head) * KEY + of_key))[:, None]
    else:
        decay = tl.exp(tl.load(log_decays + row * HEADS + head))
    read, written = tl.load(before + row).to(tl.int64), tl.load(after + row).to(tl.int64)
    tile = head * (KEY * VALUE) + of_key[:, None] * VALUE + column[None, :]
    state = tl.load(states + read * (HEADS * KEY * VALUE) + tile, mask=read > 0, other=0.0) * decay
    change = (value - tl.reduce(state * key[:, None], 0, plus)) * beta
    state += key[:, None] * change[None, :]
    tl.store(states + written * (HEADS * KEY * VALUE) + tile, state, mask=written > 0)
    attended = tl.reduce(state * query[:, None], 0, plus)
    tl.store(out + (row * HEADS + head) * VALUE + column, attended)


@triton.jit
def gated_norm(
    values,  # [T, HEADS, VALUE], replaced
    gates,  # [T, HEADS * VALUE], rows GATE_STRIDE apart
    weight,  # [VALUE]
    eps,
    HEADS: tl.constexpr,
    VALUE: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
    SIGMOID: tl.constexpr,
    BLOCK: tl.constexpr,  # heads
):
    """RMS norm of each head, times silu(gates) or their sigmoid. Grid: tokens, blocks of heads."""
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    column = tl.arange(0, PADDED_VALUE)[None, :]
    is_there = (head < HEADS) & (column < VALUE)
    at = values + (token * HEADS + head) * VALUE + column
    value = tl.load(at, mask=is_there, other=0.0)
    inverse = 1.0 / tl.sqrt(tl.reduce(value * value, 1, plus) / VALUE + eps)
    gate = tl.load(gates + token * GATE_STRIDE + head * VALUE + column, mask=is_there, other=0.0)
    normed = value * inverse[:, None] * tl.load(weight + column, mask=column < VALUE, other=0.0)
    factor = sigmoid(gate) if SIGMOID else silu(gate)
    tl.store(at, normed * factor, mask=is_there)
