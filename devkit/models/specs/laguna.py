"""Specs of Laguna: small ones with and without windows, and those of XS.2 and M.1."""

from __future__ import annotations

import math
from dataclasses import replace

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import GATE, QK_NORM, GroupedSpec
from ballast.model.layers.positions import YarnSpec
from ballast.model.spec import ModelSpec
from devkit.models.changed_spec import changed
from devkit.models.specs.glm import GLM_SPEC


def _with_windows(spec: ModelSpec, *, heads: int, window: int, dim: int) -> ModelSpec:
    """`spec` with a window, these heads and these rotated entries, without YaRN, in all layers but each fourth, from
    layer 0 on."""
    layers = []
    for index, layer in enumerate(spec.layers):
        mixer = layer.mixer
        assert isinstance(mixer, GroupedSpec)
        if index % 4:
            rope = replace(mixer.rope, dim=dim, theta=1e4, yarn=None)
            mixer = replace(mixer, num_heads=heads, window=window, rope=rope)
        layers.append(replace(layer, mixer=mixer))
    return replace(spec, layers=tuple(layers))


_PLAIN = changed(
    GLM_SPEC,
    name="small-laguna",
    architecture=ARCHITECTURES["laguna"],
    options=frozenset({QK_NORM, GATE}),
    gate="softplus",
    num_layers=6,
    theta=5e5,
    yarn=YarnSpec(64.0, 4096, 64.0, 1.0, attention_factor=1.0, mscale_all_dim=0.0),
)

LAGUNA_SPEC = _with_windows(_PLAIN, heads=8, window=24, dim=32)
LAGUNA_FULL_SPEC = changed(_PLAIN, name="small-laguna-m", num_layers=4, num_dense_layers=2, gates_entries=True)

_XS = changed(
    _PLAIN,
    name="Laguna XS.2's shape",
    num_layers=40,
    vocab_size=100352,
    context_length=131072,
    hidden=2048,
    dense_width=8192,
    num_heads=48,
    num_kv_heads=8,
    head_dim=128,
    v_dim=128,
    dim=64,
    num_experts=256,
    num_experts_used=8,
    width=512,
    num_shared=1,
    rms_eps=1e-6,
)

LAGUNA_XS_SPEC = _with_windows(_XS, heads=64, window=512, dim=128)

LAGUNA_S_SPEC = _with_windows(
    changed(
        _XS,
        name="Laguna S-2.1's shape",
        num_layers=48,
        context_length=1048576,
        hidden=3072,
        dense_width=12288,
        num_experts_used=10,
        width=1024,
        yarn=YarnSpec(128.0, 8192, 32.0, 1.0, 1 + 0.1 * math.log(128), mscale_all_dim=0.0),
    ),
    heads=72,
    window=512,
    dim=128,
)

LAGUNA_M1_SPEC = changed(
    _XS,
    name="Laguna M.1's shape",
    num_layers=70,
    num_dense_layers=3,
    hidden=4096,
    dense_width=16384,
    num_heads=64,
    num_experts_used=16,
    width=1024,
    gates_entries=True,
    weights_scale=1.0,
)
