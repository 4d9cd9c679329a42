"""The spec of a tiny model, whose layers declare its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ballast.families.architecture import ClampedSilu
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.compressed import CompressedSpec, EntryIndexSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.feed_forward import DenseSpec, ExpertsSpec, RoutingSpec
from ballast.model.layers.grouped import BlockIndexSpec, GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import LayerSpec, Mixer
from ballast.model.layers.ngram import NgramSpec
from ballast.model.layers.positions import NO_ROPE, RopeSpec
from ballast.model.spec import ModelSpec
from ballast.tiny.shape import TinyCompressed, TinyDeltaNet, TinyHeads, TinyLimits, TinyShape

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
    units, shared_units = _units(shape)
    experts = ExpertsSpec(
        routing,
        shape.expert_dim,
        shape.num_shared_experts,
        is_fused=False,
        router_bias_name=shape.router_bias_name,
        unit=architecture.unit,
        gates_shared=architecture.gates_shared,
        has_biases=architecture.expert_biases,
    )
    return ModelSpec(
        name=shape.name,
        architecture=architecture,
        vocab_size=num_rows,
        context_length=shape.context_length,
        hidden=shape.hidden,
        layers=tuple(
            LayerSpec(
                _mixer(shape, layer, mla),
                DenseSpec(shape.ffn_dim, shared_units[layer])
                if layer < shape.num_dense_layers
                else replace(
                    experts,
                    unit=units[layer] or experts.unit,
                    shared_unit=shared_units[layer],
                    table_rows=num_rows if shape.compressed and layer < shape.compressed.num_hashed else 0,
                ),
                shape.stream,
                _ngram(shape, num_rows, layer),
            )
            for layer in range(shape.num_layers)
        ),
        rms_eps=shape.rms_eps,
        tied_output=False,
    )


def _units(shape: TinyShape) -> tuple[list[ClampedSilu | None], list[ClampedSilu | None]]:
    """By layer, those of experts that have a limit, and those of shared experts and dense layers."""
    none = (0.0,) * shape.num_layers
    limits = shape.limits or TinyLimits(none, none)
    on_inputs = ARCHITECTURES[shape.architecture].limits_inputs
    experts, shared = (
        [ClampedSilu(limit, on_inputs) if limit else None for limit in each] for each in (limits.experts, limits.shared)
    )
    return experts, shared


def _mixer(shape: TinyShape, layer: int, mla: Layout) -> Mixer:
    if shape.delta_net is not None and shape.delta_net.has(layer):
        return _delta_net(shape, shape.delta_net)
    if shape.heads is not None:
        return _grouped(shape, shape.heads, layer)
    if shape.compressed is not None:
        return _compressed(shape, shape.compressed, layer)
    kimi_delta, index, rotates = shape.kimi_delta, shape.index, ARCHITECTURES[shape.architecture].rotates
    if kimi_delta is not None and layer not in kimi_delta.attention_layers:
        return KimiDeltaSpec(shape.num_heads, kimi_delta.head_dim, kimi_delta.conv_taps, kimi_delta.lower_bound)
    rope = RopeSpec(shape.rope_dim, shape.rope_theta if rotates else NO_ROPE.theta, None)
    return LatentSpec(
        num_heads=shape.num_heads,
        q_lora_rank=shape.q_lora_rank,
        kv_lora_rank=shape.kv_lora_rank,
        nope_dim=shape.nope_dim,
        v_dim=shape.v_dim,
        rope=rope,
        mla_layout=mla,
        rotates=rotates,
        index=None
        if index is None
        else IndexSpec(
            num_heads=index.num_heads,
            key_dim=index.key_dim,
            top_k=index.top_k,
            pairs_apart=ARCHITECTURES[shape.architecture].index_pairs == "apart",
            has_indexer=layer not in index.shared_layers,
            pool=index.pool,
        ),
    )


def _compressed(shape: TinyShape, compressed: TinyCompressed, layer: int) -> CompressedSpec:
    ratio, index = compressed.ratios[layer], shape.index
    assert shape.q_lora_rank is not None
    return CompressedSpec(
        shape.num_heads,
        compressed.head_dim,
        shape.q_lora_rank,
        RopeSpec(shape.rope_dim, compressed.theta if ratio else shape.rope_theta, None),
        compressed.window,
        ratio,
        compressed.output_groups,
        compressed.output_rank,
        EntryIndexSpec(index.num_heads, index.key_dim, index.top_k) if index is not None and ratio == 4 else None,
    )


def _ngram(shape: TinyShape, num_rows: int, layer: int) -> NgramSpec | None:
    ngram = shape.ngram
    if ngram is None or ngram.layer != layer:
        return None
    return ngram.spec(shape.hidden // len(ngram.head_sizes), num_rows, end_id=0)


def _delta_net(shape: TinyShape, net: TinyDeltaNet) -> DeltaNetSpec:
    return DeltaNetSpec(
        net.num_heads,
        net.num_key_heads,
        net.width,
        net.width,
        net.conv_taps,
        heads_alternate=ARCHITECTURES[shape.architecture].delta_net == "alternating",
        gate=ARCHITECTURES[shape.architecture].delta_gate,
        product_layout=net.product_layout,
        beta_layout=net.beta_layout,
    )


def _grouped(shape: TinyShape, heads: TinyHeads, layer: int) -> GroupedSpec:
    architecture = ARCHITECTURES[shape.architecture]
    has_window = heads.has_window(layer, architecture.windows)
    is_halved = architecture.halves_full_rope and not has_window
    rope_dim = (heads.windowed_rope_dim if has_window else None) or shape.rope_dim
    return GroupedSpec(
        (heads.windowed_heads if has_window else None) or shape.num_heads,
        heads.kv_heads(layer),
        heads.head_dim,
        heads.value_dim,
        RopeSpec(
            rope_dim // 2 if is_halved else rope_dim,
            (heads.windowed_theta if has_window else None) or shape.rope_theta,
            None,
            has_factors=is_halved and shape.factors is not None,
        ),
        options=heads.options | (architecture.windowed_options if has_window else frozenset()),
        window=heads.window if has_window else None,
        norms_all_heads=architecture.norms_all_heads,
        value_scale=heads.value_scale,
        gates_queries=architecture.gates_queries,
        fuses_qkv=heads.fuses_qkv,
        gate=architecture.gate,
        gates_entries=heads.gates_entries,
        index=None
        if shape.index is None
        else BlockIndexSpec(shape.index.num_heads, shape.index.key_dim, shape.index.top_k, shape.index.pool),
    )
