"""Specs of dots: a small one and that of dots.llm1."""

from __future__ import annotations

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import QK_NORM
from devkit.models.changed_spec import changed
from devkit.models.specs.glm import GLM_SPEC

DOTS_SPEC = changed(
    GLM_SPEC,
    name="small-dots",
    architecture=ARCHITECTURES["dots1"],
    num_kv_heads=4,
    dim=32,
    options=frozenset({QK_NORM}),
    num_shared=2,
    rms_eps=1e-6,
)

DOTS1_142B_SPEC = changed(
    DOTS_SPEC,
    name="dots.llm1's shape",
    num_layers=62,
    num_dense_layers=1,
    vocab_size=152064,
    context_length=32768,
    hidden=4096,
    dense_width=10944,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    v_dim=128,
    dim=128,
    theta=1e7,
    num_experts=128,
    num_experts_used=6,
    width=1408,
    num_shared=2,
)
