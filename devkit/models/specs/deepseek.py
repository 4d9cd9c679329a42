"""Specs of DeepSeek: small ones, and the sizes of R1 and V3.2."""

from __future__ import annotations

from dataclasses import replace

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.feed_forward import DenseSpec, ExpertsSpec, RoutingSpec
from ballast.model.layers.latent import IndexSpec, LatentSpec
from ballast.model.layers.layer import LayerSpec
from ballast.model.layers.positions import RopeSpec, YarnSpec
from ballast.model.spec import ModelSpec
from devkit.models.changed_spec import changed

_V3_ROUTING = RoutingSpec(
    num_experts=8,
    num_experts_used=2,
    gating="sigmoid",
    num_groups=4,
    num_groups_used=2,
    group_score="top2_sum",
    router_bias=True,
    normalize_weights=True,
    weights_scale=2.5,
)

V3_YARN = YarnSpec(
    factor=40.0, original_context=4096, beta_fast=32.0, beta_slow=1.0, attention_factor=1.0, mscale_all_dim=1.0
)

_V3_MIXER = LatentSpec(
    num_heads=2,
    q_lora_rank=32,
    kv_lora_rank=64,
    nope_dim=32,
    v_dim=32,
    rope=RopeSpec(dim=16, theta=10000.0, yarn=V3_YARN),
    mla_layout="split",
)

_V3_EXPERTS = ExpertsSpec(_V3_ROUTING, width=32, num_shared=1, is_fused=False)

V3_SPEC = ModelSpec(
    name="small-v3",
    architecture=ARCHITECTURES["deepseek2"],
    vocab_size=40,
    context_length=4096,
    hidden=64,
    layers=tuple(LayerSpec(_V3_MIXER, each) for each in (DenseSpec(96), _V3_EXPERTS, _V3_EXPERTS)),
    rms_eps=1e-6,
    tied_output=False,
)

R1_SPEC = changed(
    V3_SPEC,
    name="DeepSeek-R1's shape",
    num_layers=61,
    num_dense_layers=3,
    vocab_size=129280,
    context_length=163840,
    hidden=7168,
    dense_width=18432,
    num_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    nope_dim=128,
    dim=64,
    v_dim=128,
    num_experts=256,
    num_experts_used=8,
    width=2048,
    num_groups=8,
    num_groups_used=4,
)

V2_LITE_SPEC = changed(
    V3_SPEC,
    name="small-v2-lite",
    q_lora_rank=None,
    mla_layout="joint",
    num_shared=2,
    gating="softmax",
    num_groups=1,
    num_groups_used=1,
    group_score="max",
    router_bias=False,
    normalize_weights=False,
    weights_scale=1.0,
    yarn=replace(V3_YARN, mscale_all_dim=0.707),
)

SMALL_INDEX = IndexSpec(num_heads=16, key_dim=32, top_k=24, pairs_apart=True, has_indexer=True)

V32_SPEC = changed(V3_SPEC, name="small-v3.2", architecture=ARCHITECTURES["deepseek32"], index=SMALL_INDEX)

V32_671B_SPEC = changed(
    R1_SPEC,
    name="DeepSeek-V3.2's shape",
    architecture=ARCHITECTURES["deepseek32"],
    index=replace(SMALL_INDEX, num_heads=64, key_dim=128, top_k=2048),
)
