"""Random weights with the scales of a trained model. They depend on shape and seed alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ballast.families.registry import ARCHITECTURES
from ballast.tiny.shape import TinyHeads, TinyIndex, TinyShape

Floats = NDArray[np.float32]

_BRANCH_GAIN = 0.6
"""Size of what one attention or feed-forward adds to the residual stream, whose rows start at about 1."""
_SILU_RMS = 0.6
"""Root mean square of silu(g)·u for normal g and u of variance 1."""
_LOGIT_STD = 3.0
"""Over a thousand tokens: about 2.5 nats of entropy, the best token about 1 above the next."""
_PADDING_GAIN = 2.0
"""Makes rows without a token likelier than others, so that a sampler which fails to mask them is found out."""


def tensors(shape: TinyShape, num_tokens: int, num_rows: int, seed: int) -> Iterator[tuple[str, Floats]]:
    """(GGUF name, values) of every tensor; the last two dimensions are rows and contiguous columns.

    The heads' up-projection is `blk.N.attn_kv_b.weight` [heads · (nope + v), kv_lora_rank]; the writer splits it for
    the split layout. Rows num_tokens…num_rows-1 of embedding and output belong to no token.
    """
    output = _matrix(seed, "output.weight", (num_rows, shape.hidden), _LOGIT_STD)
    output[num_tokens:] *= _PADDING_GAIN
    yield "token_embd.weight", _matrix(seed, "token_embd.weight", (num_rows, shape.hidden), math.sqrt(shape.hidden))
    yield "output_norm.weight", _norm(seed, "output_norm.weight", shape.hidden)
    yield "output.weight", output
    for layer in range(shape.num_layers):
        yield from _attention(shape, f"blk.{layer}.", seed)
        if shape.index is not None and layer not in shape.index.shared_layers:
            yield from _indexer(shape, shape.index, f"blk.{layer}.indexer.", seed)
        ffn_norm = f"blk.{layer}.{ARCHITECTURES[shape.architecture].ffn_norm}.weight"
        yield ffn_norm, _norm(seed, ffn_norm, shape.hidden)
        if layer < shape.num_dense_layers:
            yield from _mlp(shape, f"blk.{layer}.", "", shape.ffn_dim, seed)
        else:
            yield from _experts(shape, f"blk.{layer}.", seed)


def _attention(shape: TinyShape, prefix: str, seed: int) -> Iterator[tuple[str, Floats]]:
    heads, hidden, latent = shape.num_heads, shape.hidden, shape.kv_lora_rank

    def matrix(name: str, rows: int, cols: int, gain: float = 1.0) -> tuple[str, Floats]:
        return f"{prefix}{name}.weight", _matrix(seed, f"{prefix}{name}.weight", (rows, cols), gain)

    def norm(name: str, size: int) -> tuple[str, Floats]:
        return f"{prefix}{name}.weight", _norm(seed, f"{prefix}{name}.weight", size)

    yield norm("attn_norm", hidden)
    if shape.heads is not None:
        yield from _grouped(shape, shape.heads, prefix, seed)
        return
    query_rows = heads * (shape.nope_dim + shape.rope_dim)
    if shape.q_lora_rank is None:
        yield matrix("attn_q", query_rows, hidden)
    else:
        yield matrix("attn_q_a", shape.q_lora_rank, hidden)
        yield norm("attn_q_a_norm", shape.q_lora_rank)
        yield matrix("attn_q_b", query_rows, shape.q_lora_rank)
    yield matrix("attn_kv_a_mqa", latent + shape.rope_dim, hidden)
    yield norm("attn_kv_a_norm", latent)
    yield matrix("attn_kv_b", heads * (shape.nope_dim + shape.v_dim), latent)
    # Attention averages over tokens, which shrinks its output.
    yield matrix("attn_output", hidden, heads * shape.v_dim, 2 * _BRANCH_GAIN)


def _indexer(shape: TinyShape, index: TinyIndex, prefix: str, seed: int) -> Iterator[tuple[str, Floats]]:
    assert shape.q_lora_rank is not None
    parts = {
        "attn_q_b": (index.num_heads * index.key_dim, shape.q_lora_rank),
        "attn_k": (index.key_dim, shape.hidden),
        "proj": (index.num_heads, shape.hidden),
    }
    for part, dims in parts.items():
        name = f"{prefix}{part}.weight"
        yield name, _matrix(seed, name, dims, 1.0)
    yield f"{prefix}k_norm.weight", _norm(seed, f"{prefix}k_norm.weight", index.key_dim)
    yield f"{prefix}k_norm.bias", _normal(seed, f"{prefix}k_norm.bias", (index.key_dim,)) * np.float32(0.1)


def _grouped(shape: TinyShape, heads: TinyHeads, prefix: str, seed: int) -> Iterator[tuple[str, Floats]]:
    rows = {"attn_q": shape.num_heads, "attn_k": heads.num_kv_heads, "attn_v": heads.num_kv_heads}
    for part, num_heads in rows.items():
        name = f"{prefix}{part}"
        size = num_heads * heads.head_dim
        yield f"{name}.weight", _matrix(seed, f"{name}.weight", (size, shape.hidden), 1.0)
        if heads.qkv_bias:
            yield f"{name}.bias", _normal(seed, f"{name}.bias", (size,)) * np.float32(0.3)
    if heads.qk_norm:
        for name in (f"{prefix}attn_q_norm.weight", f"{prefix}attn_k_norm.weight"):
            yield name, _norm(seed, name, heads.head_dim)
    name = f"{prefix}attn_output.weight"
    yield name, _matrix(seed, name, (shape.hidden, shape.num_heads * heads.head_dim), 2 * _BRANCH_GAIN)


def _mlp(shape: TinyShape, prefix: str, suffix: str, width: int, seed: int) -> Iterator[tuple[str, Floats]]:
    for part in ("gate", "up"):
        name = f"{prefix}ffn_{part}{suffix}.weight"
        yield name, _matrix(seed, name, (width, shape.hidden), 1.0)
    name = f"{prefix}ffn_down{suffix}.weight"
    yield name, _matrix(seed, name, (shape.hidden, width), _BRANCH_GAIN / _SILU_RMS)


def _experts(shape: TinyShape, prefix: str, seed: int) -> Iterator[tuple[str, Floats]]:
    router = f"{prefix}ffn_gate_inp.weight"
    # Rows of different norms: some experts are chosen often and clearly, others rarely.
    spread = np.exp(_normal(seed, f"{router}.spread", (shape.num_experts, 1)) * np.float32(0.4))
    yield router, _matrix(seed, router, (shape.num_experts, shape.hidden), 1.5) * spread
    if shape.gating == "sigmoid":
        name = f"{prefix}exp_probs_b.bias"
        yield name, _normal(seed, name, (shape.num_experts,)) * np.float32(0.15)
    for part in ("gate", "up"):
        name = f"{prefix}ffn_{part}_exps.weight"
        yield name, _matrix(seed, name, (shape.num_experts, shape.expert_dim, shape.hidden), 1.0)
    name = f"{prefix}ffn_down_exps.weight"
    gain = _BRANCH_GAIN / _SILU_RMS / _routed_gain(shape)
    yield name, _matrix(seed, name, (shape.num_experts, shape.hidden, shape.expert_dim), gain)
    if shape.num_shared_experts:
        yield from _mlp(shape, prefix, "_shexp", shape.num_shared_experts * shape.expert_dim, seed)


def _routed_gain(shape: TinyShape) -> float:
    """Roughly, the size of the chosen experts' weighted sum relative to one expert's output."""
    total_weight = 1.0 if shape.normalize_weights else 0.8
    return shape.weights_scale * total_weight / math.sqrt(shape.num_experts_used)


def _matrix(seed: int, name: str, dims: tuple[int, ...], gain: float) -> Floats:
    """Normal weights that turn a vector of variance 1 into one of variance gain²."""
    return _normal(seed, name, dims) * np.float32(gain / math.sqrt(dims[-1]))


def _norm(seed: int, name: str, size: int) -> Floats:
    return 1 + _normal(seed, name, (size,)) * np.float32(0.1)


def _normal(seed: int, name: str, dims: tuple[int, ...]) -> Floats:
    """Normal numbers from a generator for this tensor, so that they do not depend on the other tensors."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return generator.standard_normal(dims, dtype=np.float32)
