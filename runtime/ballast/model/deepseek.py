"""DeepSeek V2, V3, R1 and Kimi K2 on the CPU: one transformer, told apart by its ModelSpec.

Papers: DeepSeek-V2 (arXiv 2405.04434: latent attention, shared and routed experts), DeepSeek-V3 (arXiv 2412.19437:
sigmoid routing with a selection bias). Attention runs absorbed: the cache holds one latent row per token, queries
are carried into the latent space by W_UK and results out of it by W_UV.

Shapes: T tokens, D hidden, H heads, L = kv_lora_rank + rope_dim.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.batch import Batch
from ballast.model.kv_pool import KvPool
from ballast.model.rope import RopeTable, build_rope_table, softmax_scale
from ballast.model.spec import ModelSpec
from ballast.model.weights import AttentionWeights, ExpertWeights, LayerWeights, MlpWeights, ModelWeights

F32 = NDArray[np.float32]


class DeepseekModel:
    """A loaded model and its KV pool; implements the engine's Runner."""

    def __init__(
        self, spec: ModelSpec, weights: ModelWeights, pool: kernels.ThreadPool, kv: KvPool, num_positions: int
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._ops = Ops(pool, spec.rms_eps)
        self._kv = kv
        self._rope = build_rope_table(spec, num_positions)
        self._layers = [Layer(spec, layer, self._ops) for layer in weights.layers]

    def forward(self, batch: Batch, alive: Callable[[], None]) -> F32:
        """Write the batch's KV; return logits [sampled, vocabulary]."""
        x = np.empty((batch.token_ids.size, self._spec.hidden), np.float32)
        kernels.embed(self._weights.embedding, batch.token_ids, x)
        for layer, cache in zip(self._layers, self._kv.layers, strict=True):
            layer.forward(x, batch, self._rope, cache, self._kv.block_tokens)
            alive()
        last = self._ops.norm(x[batch.sampled], self._weights.output_norm)
        return self._ops.linear(last, self._weights.output)


class Ops:
    """The kernels, with outputs allocated."""

    def __init__(self, pool: kernels.ThreadPool, rms_eps: float) -> None:
        self.pool = pool
        self._rms_eps = rms_eps

    def linear(self, x: F32, weight: kernels.Matrix) -> F32:
        """x [T, cols] · weightᵀ → [T, rows]."""
        out = np.empty((x.shape[0], weight.rows), np.float32)
        kernels.linear(self.pool, x, weight, out)
        return out

    def norm(self, x: F32, weight: F32) -> F32:
        """Root-mean-square norm over the last dimension, [T, D] → [T, D]."""
        out = np.empty_like(x)
        kernels.rms_norm(x, weight, self._rms_eps, out)
        return out

    def mlp(self, x: F32, weights: MlpWeights) -> F32:
        """down(silu(gate x) * up x), [T, D] → [T, D]."""
        hidden = self.linear(x, weights.gate)
        kernels.silu_mul(hidden, self.linear(x, weights.up), hidden)
        return self.linear(hidden, weights.down)


class Layer:
    """Attention, then a dense or expert feed-forward, each on a normed residual stream."""

    def __init__(self, spec: ModelSpec, weights: LayerWeights, ops: Ops) -> None:
        self._weights = weights
        self._ops = ops
        self._attention = LatentAttention(spec, weights.attention, ops)
        self._experts = MixtureOfExperts(spec, weights.experts, ops) if weights.experts else None

    def forward(self, x: F32, batch: Batch, rope: RopeTable, cache: F32, block_tokens: int) -> None:
        """Update the residual stream x [T, D] in place; write this layer's cache [slots, L]."""
        weights = self._weights
        normed = self._ops.norm(x, weights.attention.norm)
        x += self._attention.forward(normed, batch, rope, cache, block_tokens)
        normed = self._ops.norm(x, weights.ffn_norm)
        if self._experts is not None:
            x += self._experts.forward(normed)
        if weights.mlp is not None:
            x += self._ops.mlp(normed, weights.mlp)


class LatentAttention:
    """Multi-head latent attention in its absorbed form (DeepSeek-V2 §2.1.2, appendix C)."""

    def __init__(self, spec: ModelSpec, weights: AttentionWeights, ops: Ops) -> None:
        self._spec = spec
        self._weights = weights
        self._ops = ops
        self._scale = softmax_scale(spec)

    def forward(self, x: F32, batch: Batch, rope: RopeTable, cache: F32, block_tokens: int) -> F32:
        """x [T, D] → [T, D]; the tokens' latent rows are written to cache [slots, L] first."""
        spec, w = self._spec, self._weights
        num_tokens, rank = x.shape[0], spec.kv_lora_rank
        cos, sin = rope.cos[batch.positions], rope.sin[batch.positions]

        latent = self._ops.linear(x, w.kv_a)  # [T, L]
        key = np.ascontiguousarray(latent[:, rank:]).reshape(num_tokens, 1, spec.rope_dim)
        kernels.rope_interleaved(key, cos, sin)
        cache[batch.slots, :rank] = self._ops.norm(np.ascontiguousarray(latent[:, :rank]), w.kv_a_norm)
        cache[batch.slots, rank:] = key[:, 0]

        q = self._queries(x).reshape(num_tokens, spec.num_heads, spec.nope_dim + spec.rope_dim)
        q_rope = np.ascontiguousarray(q[:, :, spec.nope_dim :])
        kernels.rope_interleaved(q_rope, cos, sin)
        query = np.concatenate([self._absorb(np.ascontiguousarray(q[:, :, : spec.nope_dim])), q_rope], axis=2)

        out = np.empty((num_tokens, spec.num_heads, rank), np.float32)
        kernels.mla_attention(
            self._ops.pool,
            query,
            cache,
            block_tokens,
            batch.query_indptr,
            batch.positions,
            batch.kv_indptr,
            batch.kv_indices,
            rank,
            self._scale,
            out,
        )
        values = np.empty((num_tokens, spec.num_heads, spec.v_dim), np.float32)
        kernels.head_linear(self._ops.pool, out, w.v_up.matrix, w.v_up.head_stride, w.v_up.row_offset, values)
        return self._ops.linear(values.reshape(num_tokens, -1), w.output)

    def _queries(self, x: F32) -> F32:
        query = self._weights.query
        if query.down is not None and query.norm is not None:
            x = self._ops.norm(self._ops.linear(x, query.down), query.norm)
        return self._ops.linear(x, query.up)

    def _absorb(self, q_nope: F32) -> F32:
        """Carry queries [T, H, nope] into the latent space [T, H, kv_lora_rank]."""
        k_up = self._weights.k_up
        out = np.empty((*q_nope.shape[:2], self._spec.kv_lora_rank), np.float32)
        apply = kernels.head_linear_transposed if k_up.transposed else kernels.head_linear
        apply(self._ops.pool, q_nope, k_up.matrix, k_up.head_stride, k_up.row_offset, out)
        return out


class MixtureOfExperts:
    """Router and routed experts; the shared expert is the layer's ordinary feed-forward."""

    def __init__(self, spec: ModelSpec, weights: ExpertWeights, ops: Ops) -> None:
        self._spec = spec
        self._weights = weights
        self._ops = ops

    def forward(self, x: F32) -> F32:
        """x [T, D] → weighted sum of each token's experts [T, D]."""
        spec, w = self._spec, self._weights
        ids = np.empty((x.shape[0], spec.num_experts_used), np.int32)
        scales = np.empty((x.shape[0], spec.num_experts_used), np.float32)
        kernels.route(
            self._ops.linear(x, w.router),
            w.bias,
            sigmoid=spec.gating == "sigmoid",
            num_groups=spec.num_groups,
            num_groups_used=spec.num_groups_used,
            group_score_top2=spec.group_score == "top2_sum",
            normalize=spec.normalize_weights,
            scale=spec.weights_scale,
            ids=ids,
            weights=scales,
        )
        out = np.empty_like(x)
        w.experts.forward(self._ops.pool, x, ids, scales, out)
        return out
