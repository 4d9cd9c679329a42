"""Specs of GLM: small ones of its architectures, and those of its releases."""

from __future__ import annotations

from dataclasses import replace

from ballast.families.architecture import ClampedSilu
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.feed_forward import DenseSpec
from ballast.model.layers.grouped import QK_NORM, QKV_BIAS
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import IndexSpec
from ballast.model.layers.positions import NO_ROPE
from ballast.model.layers.stream import StreamSpec
from ballast.model.spec import ModelSpec
from devkit.models.changed_spec import changed
from devkit.models.specs.deepseek import R1_SPEC, SMALL_INDEX, V32_SPEC
from devkit.models.specs.kimi import K2_SPEC, with_kimi_delta
from devkit.models.specs.qwen3 import QWEN3_SPEC

GLM_SPEC = changed(
    QWEN3_SPEC,
    name="small-glm",
    architecture=ARCHITECTURES["glm4moe"],
    num_dense_layers=1,
    dense_width=96,
    dim=16,
    options=frozenset({QKV_BIAS}),
    num_shared=1,
    gating="sigmoid",
    group_score="top2_sum",
    router_bias=True,
    weights_scale=2.5,
    rms_eps=1e-5,
)

GLM46_SPEC = changed(
    GLM_SPEC,
    name="GLM-4.6's shape",
    num_layers=92,
    num_dense_layers=3,
    vocab_size=151552,
    context_length=202752,
    hidden=5120,
    dense_width=12288,
    num_heads=96,
    num_kv_heads=8,
    head_dim=128,
    v_dim=128,
    dim=64,
    options=frozenset({QKV_BIAS, QK_NORM}),
    num_experts=160,
    num_experts_used=8,
    width=1536,
)

GLM45_AIR_SPEC = changed(
    GLM46_SPEC,
    name="GLM-4.5-Air's shape",
    num_layers=46,
    num_dense_layers=1,
    context_length=131072,
    hidden=4096,
    dense_width=10944,
    options=frozenset({QKV_BIAS}),
    num_experts=128,
    width=1408,
    weights_scale=1.0,
)

GLM47_FLASH_SPEC = changed(
    K2_SPEC,
    name="GLM-4.7-Flash's shape",
    num_layers=47,
    vocab_size=154880,
    context_length=202752,
    hidden=2048,
    dense_width=10240,
    num_heads=20,
    q_lora_rank=768,
    nope_dim=192,
    v_dim=256,
    num_experts=64,
    num_experts_used=4,
    width=1536,
    weights_scale=1.8,
    rms_eps=1e-5,
    theta=1e6,
    yarn=None,
)

GLM_DSA_SPEC = changed(
    V32_SPEC,
    name="small-glm-dsa",
    architecture=ARCHITECTURES["glm-dsa"],
    num_layers=6,
    index=replace(SMALL_INDEX, pairs_apart=False),
    indexed_layers=(0, 1, 2, 5),
    num_groups=1,
    num_groups_used=1,
    yarn=None,
)

GLM5_SPEC = changed(
    R1_SPEC,
    name="GLM-5's shape",
    architecture=ARCHITECTURES["glm-dsa"],
    num_layers=78,
    vocab_size=154880,
    context_length=202752,
    hidden=6144,
    dense_width=12288,
    num_heads=64,
    q_lora_rank=2048,
    nope_dim=192,
    v_dim=256,
    index=IndexSpec(num_heads=32, key_dim=128, top_k=2048, pairs_apart=False, has_indexer=True),
    num_groups=1,
    num_groups_used=1,
    rms_eps=1e-5,
    theta=1e6,
    yarn=None,
)

GLM52_SPEC = changed(
    GLM5_SPEC,
    name="GLM-5.2's shape",
    context_length=1048576,
    theta=8e6,
    indexed_layers=tuple(layer for layer in range(78) if layer in (0, 1) or layer % 4 == 2),
)


def _with_streams(spec: ModelSpec, stream: StreamSpec, unit: ClampedSilu) -> ModelSpec:
    """`spec` with these hyper-connections, and this unit in all feed-forwards."""
    layers = []
    for layer in spec.layers:
        own = layer.feed_forward
        limited = replace(own, unit=unit) if isinstance(own, DenseSpec) else replace(own, unit=unit, shared_unit=unit)
        layers.append(replace(layer, feed_forward=limited, stream=stream))
    return replace(spec, layers=tuple(layers))


_STREAM, _UNIT = StreamSpec(num_rows=4, rounds=20, eps=1e-6), ClampedSilu(10.0, limits_input=True)

GLM_NEXT_SPEC = with_kimi_delta(
    _with_streams(
        changed(
            GLM_DSA_SPEC,
            name="small-glm-next",
            architecture=ARCHITECTURES["glm5-next"],
            num_layers=4,
            index=replace(SMALL_INDEX, pool=4),
            theta=NO_ROPE.theta,
            dim=0,
            rotates=False,
        ),
        _STREAM,
        _UNIT,
    ),
    KimiDeltaSpec(num_heads=GLM_DSA_SPEC.attentions[0].num_heads, head_dim=32, conv_taps=4, lower_bound=-5.0),
    attention_layers=(1, 3),
)

GLM53_FLASH_SPEC = with_kimi_delta(
    _with_streams(
        changed(
            GLM5_SPEC,
            name="GLM-5.3-Flash's shape",
            architecture=ARCHITECTURES["glm5-next"],
            num_layers=45,
            context_length=1048576,
            hidden=4096,
            q_lora_rank=1536,
            nope_dim=256,
            index=IndexSpec(num_heads=32, key_dim=128, top_k=2048, pairs_apart=True, has_indexer=True, pool=4),
            theta=NO_ROPE.theta,
            dim=0,
            rotates=False,
            num_experts=288,
        ),
        _STREAM,
        _UNIT,
    ),
    KimiDeltaSpec(num_heads=64, head_dim=128, conv_taps=4, lower_bound=-5.0),
    attention_layers=tuple(range(3, 45, 4)),
)
