"""Specs of DeepSeek V4: a small one, and those of its releases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ballast.families.architecture import ClampedSilu
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.compressed import CompressedSpec, EntryIndexSpec
from ballast.model.layers.feed_forward import ExpertsSpec, RoutingSpec
from ballast.model.layers.layer import LayerSpec
from ballast.model.layers.positions import RopeSpec, YarnSpec
from ballast.model.layers.stream import StreamSpec
from ballast.model.spec import ModelSpec

_STREAM = StreamSpec(num_rows=4, rounds=20, eps=1e-6, weighs_end=True)
_UNIT = ClampedSilu(10.0, limits_input=True)
_YARN = YarnSpec(
    factor=16.0, original_context=65536, beta_fast=32.0, beta_slow=1.0, attention_factor=1.0, mscale_all_dim=0.0
)


def v4_spec(
    name: str,
    mixer: CompressedSpec,
    index: EntryIndexSpec,
    ratios: Sequence[int],
    routing: RoutingSpec,
    *,
    hidden: int,
    width: int,
    vocab_size: int,
    num_hashed: int,
    context_length: int = 1048576,
) -> ModelSpec:
    """`mixer`: of layers without entries. `ratios`: of all layers."""
    entries = replace(mixer, rope=replace(mixer.rope, theta=160000.0, yarn=_YARN))
    mixers = {
        0: mixer,
        4: replace(entries, ratio=4, index=index),
        128: replace(entries, ratio=128),
    }
    experts = ExpertsSpec(routing, width, num_shared=1, is_fused=False, unit=_UNIT, shared_unit=_UNIT)
    hashed = replace(experts, table_rows=vocab_size)
    return ModelSpec(
        name=name,
        architecture=ARCHITECTURES["deepseek4"],
        vocab_size=vocab_size,
        context_length=context_length,
        hidden=hidden,
        layers=tuple(
            LayerSpec(mixers[ratio], hashed if layer < num_hashed else experts, _STREAM)
            for layer, ratio in enumerate(ratios)
        ),
        rms_eps=1e-6,
        tied_output=False,
    )


_ROUTING = RoutingSpec(
    num_experts=8,
    num_experts_used=2,
    gating="sqrtsoftplus",
    num_groups=1,
    num_groups_used=1,
    group_score="max",
    router_bias=True,
    normalize_weights=True,
    weights_scale=1.5,
)

V4_SPEC = v4_spec(
    "small-v4",
    CompressedSpec(
        num_heads=4,
        head_dim=32,
        q_lora_rank=32,
        rope=RopeSpec(dim=16, theta=10000.0, yarn=None),
        window=8,
        ratio=0,
        output_groups=2,
        output_rank=16,
    ),
    EntryIndexSpec(num_heads=2, key_dim=16, top_k=4),
    (0, 4, 128, 4),
    _ROUTING,
    hidden=64,
    width=32,
    vocab_size=40,
    num_hashed=1,
)

_FLASH_MIXER = CompressedSpec(
    num_heads=64,
    head_dim=512,
    q_lora_rank=1024,
    rope=RopeSpec(dim=64, theta=10000.0, yarn=None),
    window=128,
    ratio=0,
    output_groups=8,
    output_rank=1024,
)

V4_FLASH_SPEC = v4_spec(
    "DeepSeek-V4-Flash's shape",
    _FLASH_MIXER,
    EntryIndexSpec(num_heads=64, key_dim=128, top_k=512),
    (0, 0, *(4 if layer % 2 == 0 else 128 for layer in range(2, 43))),
    replace(_ROUTING, num_experts=256, num_experts_used=6),
    hidden=4096,
    width=2048,
    vocab_size=129280,
    num_hashed=3,
)

V4_PRO_SPEC = v4_spec(
    "DeepSeek-V4-Pro's shape",
    replace(_FLASH_MIXER, num_heads=128, q_lora_rank=1536, output_groups=16),
    EntryIndexSpec(num_heads=64, key_dim=128, top_k=1024),
    (128, 128, *(4 if layer % 2 == 0 else 128 for layer in range(2, 61))),
    replace(_ROUTING, num_experts=384, num_experts_used=6, weights_scale=2.5),
    hidden=7168,
    width=3072,
    vocab_size=129280,
    num_hashed=3,
)
