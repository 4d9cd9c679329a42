"""Specs of MiMo-V2: a small one, and that of Flash and V2.5."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import SINKS, GroupedSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.spec import ModelSpec
from devkit.models.changed_spec import changed
from devkit.models.specs.glm import GLM_SPEC


def with_full_layers(spec: ModelSpec, full: Collection[int], window: int) -> ModelSpec:
    """`spec` with twice the heads of keys and values, sinks and another rotation in all layers but `full`, which see
    all positions."""
    layers = []
    for index, layer in enumerate(spec.layers):
        mixer = layer.mixer
        assert isinstance(mixer, GroupedSpec)
        if index not in full:
            mixer = replace(
                mixer,
                num_kv_heads=2 * mixer.num_kv_heads,
                options=frozenset({SINKS}),
                rope=replace(mixer.rope, theta=10000.0),
                window=window,
            )
        layers.append(replace(layer, mixer=mixer))
    return replace(spec, layers=tuple(layers))


_SMALL = GroupedSpec(
    num_heads=4,
    num_kv_heads=1,
    head_dim=48,
    v_dim=32,
    rope=RopeSpec(dim=16, theta=5e6, yarn=None),
    value_scale=0.707,
    fuses_qkv=True,
)
_PLAIN = changed(
    GLM_SPEC,
    name="small-mimo",
    architecture=ARCHITECTURES["mimo2"],
    num_layers=4,
    mixer=_SMALL,
    num_shared=0,
    weights_scale=1.0,
)

MIMO_SPEC = with_full_layers(_PLAIN, (0, 3), window=24)

MIMO_FLASH_SPEC = with_full_layers(
    changed(
        _PLAIN,
        name="MiMo-V2-Flash's shape",
        num_layers=48,
        vocab_size=152576,
        context_length=262144,
        hidden=4096,
        dense_width=16384,
        num_heads=64,
        num_kv_heads=4,
        head_dim=192,
        v_dim=128,
        dim=64,
        num_experts=256,
        num_experts_used=8,
        width=2048,
    ),
    (0, *range(5, 48, 6)),
    window=128,
)
