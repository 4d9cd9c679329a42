"""Specs of gpt-oss: a small one and those of its two sizes."""

from __future__ import annotations

import math
from dataclasses import replace

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import OUTPUT_BIAS, QKV_BIAS, SINKS, GroupedSpec
from ballast.model.layers.positions import YarnSpec
from ballast.model.spec import ModelSpec
from devkit.models.changed_spec import changed
from devkit.models.specs.qwen3 import QWEN3_SPEC


def with_windows(spec: ModelSpec, *windows: int | None) -> ModelSpec:
    """`spec` with these windows in turn, from layer 0 on."""
    layers = []
    for index, layer in enumerate(spec.layers):
        assert isinstance(layer.mixer, GroupedSpec)
        layers.append(replace(layer, mixer=replace(layer.mixer, window=windows[index % len(windows)])))
    return replace(spec, layers=tuple(layers))


_ARCHITECTURE = ARCHITECTURES["gpt-oss"]

GPT_OSS_SPEC = with_windows(
    changed(
        QWEN3_SPEC,
        name="small-gpt-oss",
        architecture=_ARCHITECTURE,
        options=frozenset({QKV_BIAS, OUTPUT_BIAS, SINKS}),
        unit=_ARCHITECTURE.unit,
        has_biases=True,
        theta=150000.0,
        rms_eps=1e-5,
        yarn=YarnSpec(32.0, 4096, 32.0, 1.0, 1 + 0.1 * math.log(32), mscale_all_dim=0.0, is_rounded=False),
    ),
    24,
    None,
)

GPT_OSS_20B_SPEC = with_windows(
    changed(
        GPT_OSS_SPEC,
        name="gpt-oss-20b's shape",
        num_layers=24,
        vocab_size=201088,
        context_length=131072,
        hidden=2880,
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        v_dim=64,
        dim=64,
        num_experts=32,
        num_experts_used=4,
        width=2880,
    ),
    128,
    None,
)

GPT_OSS_120B_SPEC = with_windows(
    changed(GPT_OSS_20B_SPEC, name="gpt-oss-120b's shape", num_layers=36, num_experts=128), 128, None
)
