"""Specs of Step: a small one and that of Step-3.5-Flash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ballast.families.architecture import ClampedSilu
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.feed_forward import DenseSpec
from ballast.model.layers.grouped import GATE, QK_NORM, GroupedSpec
from ballast.model.layers.layer import LayerSpec
from ballast.model.spec import ModelSpec
from devkit.models.changed_spec import changed
from devkit.models.specs.glm import GLM_SPEC


def _step(
    spec: ModelSpec, *, heads: int, window: int, experts: Mapping[int, float], shared: Mapping[int, float]
) -> ModelSpec:
    """`spec` with a window and these heads in all layers but each fourth, from layer 0 on; limits by layer."""
    layers = []
    for index, layer in enumerate(spec.layers):
        assert isinstance(layer.mixer, GroupedSpec)
        mixer, rope = layer.mixer, layer.mixer.rope
        if index % 4:
            mixer = replace(mixer, num_heads=heads, window=window, rope=replace(rope, theta=1e4))
        else:
            mixer = replace(mixer, rope=replace(rope, dim=rope.dim // 2, has_factors=True))
        unit, shared_unit = (ClampedSilu(each[index]) if index in each else None for each in (experts, shared))
        if isinstance(layer.feed_forward, DenseSpec):
            layers.append(LayerSpec(mixer, replace(layer.feed_forward, unit=shared_unit)))
        else:
            layers.append(LayerSpec(mixer, replace(layer.feed_forward, unit=unit, shared_unit=shared_unit)))
    return replace(spec, layers=tuple(layers))


_PLAIN = changed(
    GLM_SPEC,
    name="small-step",
    architecture=ARCHITECTURES["step35"],
    options=frozenset({QK_NORM, GATE}),
    num_layers=6,
    num_dense_layers=2,
    theta=5e6,
    weights_scale=3.0,
)

STEP_SPEC = _step(_PLAIN, heads=8, window=24, experts={5: 7.0}, shared={1: 2.0, 4: 16.0, 5: 16.0})

STEP35_FLASH_SPEC = _step(
    changed(
        _PLAIN,
        name="Step-3.5-Flash's shape",
        num_layers=45,
        num_dense_layers=3,
        vocab_size=128896,
        context_length=262144,
        hidden=4096,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        v_dim=128,
        dim=128,
        dense_width=11264,
        num_experts=288,
        num_experts_used=8,
        width=1280,
        num_shared=1,
    ),
    heads=96,
    window=512,
    experts={43: 7.0, 44: 7.0},
    shared={44: 16.0},
)
