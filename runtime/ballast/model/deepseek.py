"""DeepSeek V2, V3, R1 and Kimi K2 on the CPU: passes spec, weights, tables and cache to the C++ forward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, model
from ballast.model.batch import Batch
from ballast.model.kv_pool import KvPool
from ballast.model.rope import build_rope_table, softmax_scale
from ballast.model.spec import ModelSpec
from ballast.model.weights import AttentionWeights, HeadMatrix, LayerWeights, ModelWeights

ALIVE_EVERY_S = 0.1
"""Far below what makes a step count as dead, far above the milliseconds that waiting for the GIL may take."""


class DeepseekModel:
    """A loaded model and its KV pool; implements the engine's Runner."""

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
        self._model = model.DeepseekModel(
            pool,
            isa=isa,
            shape=_shape(spec),
            embedding=weights.embedding,
            layers=[_layer(layer) for layer in weights.layers],
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
        num_heads=spec.num_heads,
        kv_lora_rank=spec.kv_lora_rank,
        nope_dim=spec.nope_dim,
        rope_dim=spec.rope_dim,
        v_dim=spec.v_dim,
        rms_eps=spec.rms_eps,
        softmax_scale=softmax_scale(spec),
        num_experts=spec.num_experts,
        num_experts_used=spec.num_experts_used,
        num_groups=spec.num_groups,
        num_groups_used=spec.num_groups_used,
        sigmoid=spec.gating == "sigmoid",
        group_score_top2=spec.group_score == "top2_sum",
        normalize_weights=spec.normalize_weights,
        weights_scale=spec.weights_scale,
    )


def _layer(weights: LayerWeights) -> model.Layer:
    routed = weights.experts
    return model.Layer(
        attention=_attention(weights.attention),
        ffn_norm=weights.ffn_norm,
        mlp=weights.mlp,
        router=routed.router if routed else None,
        bias=routed.bias if routed else None,
        experts=routed.experts if routed else None,
    )


def _attention(weights: AttentionWeights) -> model.Attention:
    return model.Attention(
        norm=weights.norm,
        query_down=weights.query.down,
        query_norm=weights.query.norm,
        query_up=weights.query.up,
        kv_a=weights.kv_a,
        kv_a_norm=weights.kv_a_norm,
        k_up=_heads(weights.k_up),
        v_up=_heads(weights.v_up),
        output=weights.output,
    )


def _heads(heads: HeadMatrix) -> model.HeadMatrix:
    return model.HeadMatrix(heads.matrix, heads.head_stride, heads.row_offset, heads.transposed)
