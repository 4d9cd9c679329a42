"""Specs of Mistral: a small one, and the sizes of Mistral Large 3 and Mistral Small 4."""

from __future__ import annotations

from dataclasses import replace

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.positions import QueryScale
from devkit.models.changed_spec import changed
from devkit.models.specs.deepseek import R1_SPEC, V3_SPEC, V3_YARN

_YARN = replace(V3_YARN, factor=36.0, original_context=8192)

MISTRAL_LARGE3_SPEC = changed(
    R1_SPEC,
    name="Mistral Large 3's shape",
    vocab_size=131072,
    context_length=294912,
    dense_width=16384,
    num_experts=128,
    num_experts_used=4,
    width=4096,
    gating="softmax",
    group_score="max",
    router_bias=False,
    num_groups=1,
    num_groups_used=1,
    weights_scale=1.0,
    yarn=_YARN,
    query_scale=QueryScale(0.1, 8192),
)

MISTRAL_SMALL4_SPEC = changed(
    MISTRAL_LARGE3_SPEC,
    name="Mistral Small 4's shape",
    architecture=ARCHITECTURES["mistral4"],
    num_layers=36,
    num_dense_layers=0,
    context_length=1048576,
    hidden=4096,
    num_heads=32,
    q_lora_rank=1024,
    kv_lora_rank=256,
    nope_dim=64,
    width=2048,
    group_score="top2_sum",
    is_fused=True,
    yarn=replace(_YARN, factor=128.0),
)

MISTRAL4_SPEC = changed(
    V3_SPEC,
    name="small-mistral4",
    architecture=ARCHITECTURES["mistral4"],
    num_dense_layers=0,
    gating="softmax",
    router_bias=False,
    num_groups=1,
    num_groups_used=1,
    weights_scale=1.0,
    query_scale=QueryScale(0.1, 4096),
)
