"""Specs of Hunyuan: a small one and that of Hunyuan 3."""

from __future__ import annotations

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import QK_NORM
from devkit.models.changed_spec import changed
from devkit.models.specs.glm import GLM_SPEC

HUNYUAN_SPEC = changed(
    GLM_SPEC,
    name="small-hunyuan",
    architecture=ARCHITECTURES["hy_v3"],
    dim=32,
    options=frozenset({QK_NORM}),
    weights_scale=2.826,
    router_bias_name="exp_probs_b",
)

HUNYUAN3_SPEC = changed(
    HUNYUAN_SPEC,
    name="Hunyuan 3's shape",
    num_layers=80,
    vocab_size=120832,
    context_length=262144,
    hidden=4096,
    dense_width=13312,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    v_dim=128,
    dim=128,
    theta=11158840.0,
    num_experts=192,
    num_experts_used=8,
    width=1536,
)
