"""A model on the CPU: passes spec, weights, tables and cache to the C++ forward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, model
from ballast.model.batch import Batch
from ballast.model.kv_pool import KvPool
from ballast.model.rope import build_rope_table, softmax_scale
from ballast.model.runner import Runner
from ballast.model.spec import GroupedSpec, IndexSpec, LatentSpec, ModelSpec
from ballast.model.weights import GroupedWeights, HeadMatrix, IndexerWeights, LatentWeights, LayerWeights, ModelWeights

ALIVE_EVERY_S = 0.1
"""Far below what makes a step count as dead, far above the milliseconds that waiting for the GIL may take."""


class Transformer(Runner):
    """A loaded model and its KV pool; on a CPU."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        pool: kernels.ThreadPool,
        isa: str,
        kv: KvPool,
        num_positions: int,
    ) -> None:
        rope = build_rope_table(spec, num_positions)
        self.pool = pool
        self.vocabulary = spec.vocab_size
        self._routed = [layer.experts.experts for layer in weights.layers if layer.experts is not None]
        self._model = model.Transformer(
            pool,
            isa=isa,
            shape=_shape(spec),
            embedding=weights.embedding,
            layers=[_layer(layer, spec) for layer in weights.layers],
            output_norm=weights.output_norm,
            output=weights.output,
            rope_cos=rope.cos,
            rope_sin=rope.sin,
            kv_layers=kv.layers,
            block_tokens=kv.block_tokens,
        )

    @property
    def expert_bytes_read(self) -> int:
        """Bytes of routed experts' weights that steps have read from host memory so far."""
        return self._model.expert_bytes_read

    @property
    def expert_uses(self) -> NDArray[np.int64]:
        """[routed layers, E] the number of tokens that each expert was computed for so far."""
        return np.stack([experts.uses for experts in self._routed])

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        """Write the batch's KV; return logits [sampled, vocabulary]."""
        return self._model.forward(
            token_ids=batch.token_ids,
            positions=batch.positions,
            slots=batch.slots,
            query_indptr=batch.query_indptr,
            kv_indptr=batch.kv_indptr,
            kv_indices=batch.kv_indices,
            sampled=batch.sampled,
            alive=alive,
            alive_every_s=ALIVE_EVERY_S,
        )


def _shape(spec: ModelSpec) -> model.Shape:
    return model.Shape(
        hidden=spec.hidden,
        rope_dim=spec.rope_dim,
        rms_eps=spec.rms_eps,
        num_experts=spec.num_experts,
        num_experts_used=spec.num_experts_used,
        num_groups=spec.num_groups,
        num_groups_used=spec.num_groups_used,
        sigmoid=spec.gating == "sigmoid",
        group_score_top2=spec.group_score == "top2_sum",
        normalize_weights=spec.normalize_weights,
        weights_scale=spec.weights_scale,
    )


def _layer(weights: LayerWeights, spec: ModelSpec) -> model.Layer:
    routed = weights.experts
    return model.Layer(
        attention_norm=weights.attention_norm,
        attention=_attention(weights.attention, spec),
        ffn_norm=weights.ffn_norm,
        mlp=weights.mlp,
        router=routed.router if routed else None,
        bias=routed.bias if routed else None,
        experts=routed.experts if routed else None,
    )


def _attention(weights: LatentWeights | GroupedWeights, spec: ModelSpec) -> model.Attention:
    if isinstance(weights, LatentWeights):
        return _latent(weights, spec, spec.latent)
    assert isinstance(spec.attention, GroupedSpec)
    return _grouped(weights, spec, spec.attention)


def _latent(weights: LatentWeights, spec: ModelSpec, attention: LatentSpec) -> model.Attention:
    return model.Attention.latent(
        shape=model.LatentShape(
            num_heads=spec.num_heads,
            kv_lora_rank=attention.kv_lora_rank,
            nope_dim=attention.nope_dim,
            rope_dim=attention.rope_dim,
            v_dim=attention.v_dim,
            softmax_scale=softmax_scale(spec),
        ),
        query_down=weights.query.down,
        query_norm=weights.query.norm,
        query_up=weights.query.up,
        kv_a=weights.kv_a,
        kv_a_norm=weights.kv_a_norm,
        k_up=_heads(weights.k_up),
        v_up=_heads(weights.v_up),
        output=weights.output,
        sparse=None if attention.index is None else _index_shape(attention.index),
        indexer=None if weights.indexer is None else _indexer(weights.indexer),
    )


def _index_shape(index: IndexSpec) -> model.IndexerShape:
    return model.IndexerShape(
        num_heads=index.num_heads, key_width=index.key_dim, top_k=index.top_k, pairs_apart=index.pairs_apart
    )


def _indexer(weights: IndexerWeights) -> model.Indexer:
    return model.Indexer(
        query_up=weights.query_up,
        key=weights.key,
        key_norm=weights.key_norm,
        key_shift=weights.key_shift,
        head_weights=weights.head_weights,
    )


def _grouped(weights: GroupedWeights, spec: ModelSpec, attention: GroupedSpec) -> model.Attention:
    return model.Attention.grouped(
        shape=model.GroupedShape(
            num_heads=spec.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            v_dim=attention.v_dim,
            rope_dim=attention.rope_dim,
            softmax_scale=softmax_scale(spec),
        ),
        query=weights.query,
        key=weights.key,
        value=weights.value,
        query_bias=weights.query_bias,
        key_bias=weights.key_bias,
        value_bias=weights.value_bias,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        output=weights.output,
    )


def _heads(heads: HeadMatrix) -> model.HeadMatrix:
    return model.HeadMatrix(heads.matrix, heads.head_stride, heads.row_offset, heads.transposed)
