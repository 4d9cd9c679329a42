"""Spec of a small dots.llm1."""

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
