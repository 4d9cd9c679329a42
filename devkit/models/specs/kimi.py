"""Spec of Kimi K2's size."""

from __future__ import annotations

from dataclasses import replace

from devkit.models.changed_spec import changed
from devkit.models.specs.deepseek import R1_SPEC, V3_YARN

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
