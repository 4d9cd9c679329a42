"""Specs of MiniMax: a small one and that of MiniMax-M2."""

from __future__ import annotations

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import QK_NORM
from devkit.models.changed_spec import changed
from devkit.models.specs.glm import GLM_SPEC

MINIMAX_SPEC = changed(
    GLM_SPEC,
    name="small-minimax",
    architecture=ARCHITECTURES["minimax-m2"],
    num_dense_layers=0,
    options=frozenset({QK_NORM}),
    norms_all_heads=True,
    num_shared=0,
    weights_scale=1.0,
    rms_eps=1e-6,
)

MINIMAX_M2_SPEC = changed(
    MINIMAX_SPEC,
    name="MiniMax-M2's shape",
    num_layers=62,
    vocab_size=200064,
    context_length=196608,
    hidden=3072,
    num_heads=48,
    num_kv_heads=8,
    head_dim=128,
    v_dim=128,
    dim=64,
    theta=5e6,
    num_experts=256,
    num_experts_used=8,
    width=1536,
)
