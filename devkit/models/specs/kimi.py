"""Specs of Kimi K2's and Kimi Linear's sizes, and of a small Kimi Linear."""

from __future__ import annotations

from dataclasses import replace

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.positions import NO_ROPE
from ballast.model.spec import ModelSpec
from devkit.models.changed_spec import changed, latent_of
from devkit.models.specs.deepseek import R1_SPEC, V2_LITE_SPEC, V3_YARN

K2_SPEC = changed(
    R1_SPEC,
    name="Kimi K2's shape",
    num_dense_layers=1,
    vocab_size=163840,
    context_length=131072,
    num_heads=64,
    num_experts=384,
    num_groups=1,
    num_groups_used=1,
    weights_scale=2.827,
    theta=50000.0,
    yarn=replace(V3_YARN, factor=32.0, beta_fast=1.0),
)


def with_kimi_delta(spec: ModelSpec, net: KimiDeltaSpec, attention_layers: tuple[int, ...]) -> ModelSpec:
    """`spec` with this mixer in all layers but `attention_layers`."""
    layers = [
        layer if index in attention_layers else replace(layer, mixer=net) for index, layer in enumerate(spec.layers)
    ]
    return replace(spec, layers=tuple(layers))


KIMI_LINEAR_SPEC = with_kimi_delta(
    changed(
        V2_LITE_SPEC,
        name="small-kimi-linear",
        architecture=ARCHITECTURES["kimi-linear"],
        num_layers=4,
        yarn=None,
        theta=NO_ROPE.theta,
        rotates=False,
        gating="sigmoid",
        group_score="top2_sum",
        router_bias=True,
        normalize_weights=True,
        weights_scale=2.5,
    ),
    KimiDeltaSpec(num_heads=V2_LITE_SPEC.attentions[0].num_heads, head_dim=32, conv_taps=4),
    attention_layers=(1, 3),
)

KIMI_LINEAR_48B_SPEC = with_kimi_delta(
    changed(
        KIMI_LINEAR_SPEC,
        name="Kimi-Linear-48B-A3B's shape",
        num_layers=27,
        dense_width=9216,
        mixer=replace(
            latent_of(KIMI_LINEAR_SPEC.attentions[0]),
            num_heads=32,
            mla_layout="split",
            kv_lora_rank=512,
            nope_dim=128,
            v_dim=128,
            rope=replace(NO_ROPE, dim=64),
        ),
        vocab_size=163840,
        context_length=1048576,
        hidden=2304,
        num_experts=256,
        num_experts_used=8,
        num_shared=1,
        width=1024,
        weights_scale=2.446,
        rms_eps=1e-5,
    ),
    KimiDeltaSpec(num_heads=32, head_dim=128, conv_taps=4),
    attention_layers=(3, 7, 11, 15, 19, 23, 26),
)
