"""The spec of a tiny model, whose layers declare its tensors."""

from __future__ import annotations

from typing import Literal

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.feed_forward import DenseSpec, ExpertsSpec, RoutingSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import LayerSpec, Mixer
from ballast.model.layers.positions import RopeSpec
from ballast.model.spec import ModelSpec
from ballast.tiny.shape import TinyShape

Layout = Literal["split", "joint"]


def spec_of(shape: TinyShape, num_rows: int, mla: Layout) -> ModelSpec:
    """The tensors of a shape with `num_rows` rows of embedding and output. Its rotation is without YaRN, which has no
    tensors."""
    architecture = ARCHITECTURES[shape.architecture]
    rule = architecture.routers[shape.gating]
    routing = RoutingSpec(
        num_experts=shape.num_experts,
        num_experts_used=shape.num_experts_used,
        gating=shape.gating,
        num_groups=shape.num_groups,
        num_groups_used=shape.num_groups_used,
        group_score=rule.group_score,
        router_bias=rule.has_bias,
        normalize_weights=shape.normalize_weights,
        weights_scale=shape.weights_scale,
    )
    dense = DenseSpec(shape.ffn_dim)
    experts = ExpertsSpec(
        routing,
        shape.expert_dim,
        shape.num_shared_experts,
        is_fused=False,
        router_bias_name=shape.router_bias_name,
        unit=architecture.unit,
        has_biases=architecture.expert_biases,
    )
    return ModelSpec(
        name=shape.name,
        architecture=architecture,
        vocab_size=num_rows,
        context_length=shape.context_length,
        hidden=shape.hidden,
        layers=tuple(
            LayerSpec(_mixer(shape, layer, mla), dense if layer < shape.num_dense_layers else experts)
            for layer in range(shape.num_layers)
        ),
        rms_eps=shape.rms_eps,
        tied_output=False,
    )


def _mixer(shape: TinyShape, layer: int, mla: Layout) -> Mixer:
    rope, index = RopeSpec(shape.rope_dim, shape.rope_theta, None), shape.index
    if shape.heads is not None:
        head_dim, period = shape.heads.head_dim, ARCHITECTURES[shape.architecture].window_period
        return GroupedSpec(
            shape.num_heads,
            shape.heads.num_kv_heads,
            head_dim,
            head_dim,
            rope,
            options=shape.heads.options,
            window=shape.heads.window if period is not None and layer % period < period - 1 else None,
            norms_all_heads=ARCHITECTURES[shape.architecture].norms_all_heads,
        )
    return LatentSpec(
        num_heads=shape.num_heads,
        q_lora_rank=shape.q_lora_rank,
        kv_lora_rank=shape.kv_lora_rank,
        nope_dim=shape.nope_dim,
        v_dim=shape.v_dim,
        rope=rope,
        mla_layout=mla,
        index=None
        if index is None
        else IndexSpec(
            num_heads=index.num_heads,
            key_dim=index.key_dim,
            top_k=index.top_k,
            pairs_apart=ARCHITECTURES[shape.architecture].index_pairs == "apart",
            has_indexer=layer not in index.shared_layers,
        ),
    )
