"""Specs of Qwen3-MoE, Qwen3-Next and Qwen3.8-Flash-Next: small ones and those of their sizes."""

from __future__ import annotations

from dataclasses import replace

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.grouped import QK_NORM, BlockIndexSpec, GroupedSpec
from ballast.model.layers.ngram import NgramSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.spec import ModelSpec
from ballast.tiny.shape import TinyNgram
from devkit.models.changed_spec import changed
from devkit.models.specs.deepseek import V2_LITE_SPEC

QWEN3_SPEC = changed(
    V2_LITE_SPEC,
    name="small-qwen3",
    architecture=ARCHITECTURES["qwen3moe"],
    num_dense_layers=0,
    mixer=GroupedSpec(
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        v_dim=32,
        rope=RopeSpec(dim=32, theta=1e6, yarn=None),
        options=frozenset({QK_NORM}),
    ),
    num_shared=0,
    normalize_weights=True,
)

QWEN3_235B_SPEC = changed(
    QWEN3_SPEC,
    name="Qwen3-235B-A22B's shape",
    num_layers=94,
    vocab_size=151936,
    context_length=40960,
    hidden=4096,
    num_heads=64,
    num_kv_heads=4,
    head_dim=128,
    v_dim=128,
    dim=128,
    num_experts=128,
    num_experts_used=8,
    width=1536,
)

QWEN3_30B_SPEC = changed(
    QWEN3_235B_SPEC,
    name="Qwen3-30B-A3B's shape",
    num_layers=48,
    hidden=2048,
    num_heads=32,
    width=768,
)

QWEN3_CODER_SPEC = changed(
    QWEN3_235B_SPEC,
    name="Qwen3-Coder-480B-A35B's shape",
    num_layers=62,
    context_length=262144,
    hidden=6144,
    num_heads=96,
    num_kv_heads=8,
    num_experts=160,
    width=2560,
    theta=1e7,
)


def with_delta_net(spec: ModelSpec, net: DeltaNetSpec, interval: int = 4) -> ModelSpec:
    """`spec` with attention in every `interval`-th layer alone, and this mixer in the others."""
    layers = [
        layer if (index + 1) % interval == 0 else replace(layer, mixer=net) for index, layer in enumerate(spec.layers)
    ]
    return replace(spec, layers=tuple(layers))


_NET = DeltaNetSpec(num_heads=6, num_key_heads=2, key_dim=32, v_dim=32, conv_taps=4)

QWEN3_NEXT_SPEC = with_delta_net(
    changed(
        QWEN3_SPEC,
        name="small-qwen3-next",
        architecture=ARCHITECTURES["qwen3next"],
        num_layers=4,
        dim=8,
        theta=1e7,
        gates_queries=True,
        gates_shared=True,
        num_shared=1,
    ),
    _NET,
)

QWEN35_SPEC = with_delta_net(
    changed(QWEN3_NEXT_SPEC, name="small-qwen3.5", architecture=ARCHITECTURES["qwen35moe"]),
    replace(_NET, heads_alternate=True, beta_layout="split"),
)

QWEN3_NEXT_80B_SPEC = with_delta_net(
    changed(
        QWEN3_235B_SPEC,
        name="Qwen3-Next-80B-A3B's shape",
        architecture=ARCHITECTURES["qwen3next"],
        num_layers=48,
        context_length=262144,
        hidden=2048,
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        v_dim=256,
        dim=64,
        theta=1e7,
        num_experts=512,
        num_experts_used=10,
        width=512,
        gates_queries=True,
        gates_shared=True,
        num_shared=1,
    ),
    DeltaNetSpec(num_heads=32, num_key_heads=16, key_dim=128, v_dim=128, conv_taps=4),
)

QWEN35_35B_SPEC = with_delta_net(
    changed(
        QWEN3_NEXT_80B_SPEC,
        name="Qwen3.5-35B-A3B's shape",
        architecture=ARCHITECTURES["qwen35moe"],
        num_layers=40,
        vocab_size=248320,
        num_experts=256,
        num_experts_used=8,
    ),
    DeltaNetSpec(32, 16, 128, 128, conv_taps=4, heads_alternate=True, beta_layout="split"),
)

QWEN35_122B_SPEC = with_delta_net(
    changed(
        QWEN3_NEXT_80B_SPEC,
        name="Qwen3.5-122B-A10B's shape",
        architecture=ARCHITECTURES["qwen35moe"],
        vocab_size=248320,
        hidden=3072,
        num_heads=32,
        num_experts=256,
        num_experts_used=8,
        width=1024,
    ),
    DeltaNetSpec(64, 16, 128, 128, conv_taps=4, heads_alternate=True, beta_layout="split"),
)

QWEN35_397B_SPEC = with_delta_net(
    changed(
        QWEN35_122B_SPEC,
        name="Qwen3.5-397B-A17B's shape",
        num_layers=60,
        hidden=4096,
        num_experts=512,
        num_experts_used=10,
    ),
    DeltaNetSpec(64, 16, 128, 128, conv_taps=4, heads_alternate=True, beta_layout="split"),
)


def _flash_next(
    spec: ModelSpec, net: DeltaNetSpec, index: BlockIndexSpec, stream: GatedStreamSpec, ngram: NgramSpec
) -> ModelSpec:
    """`spec` with these parts in place of its own; layer 1 embeds n-grams."""
    layers = []
    for number, layer in enumerate(with_delta_net(spec, net).layers):
        mixer = replace(layer.mixer, index=index) if isinstance(layer.mixer, GroupedSpec) else layer.mixer
        layers.append(replace(layer, mixer=mixer, stream=stream, ngram=ngram if number == 1 else None))
    return replace(spec, layers=tuple(layers))


def with_small_table(spec: ModelSpec) -> ModelSpec:
    """`spec` with fewer rows in its n-gram table, if it has one, for any vocabulary."""
    layers = []
    for layer in spec.layers:
        ngram = layer.ngram
        if ngram is not None:
            tables = TinyNgram(heads_per_length=len(ngram.head_sizes) // 2, least_rows=50)
            ngram = tables.spec(ngram.row_width, spec.vocab_size, end_id=0)
        layers.append(replace(layer, ngram=ngram))
    return replace(spec, layers=tuple(layers))


FLASH_NEXT_SPEC = _flash_next(
    changed(QWEN35_SPEC, name="small-qwen3.8-flash-next", architecture=ARCHITECTURES["qwen4exp"]),
    replace(_NET, heads_alternate=True, beta_layout="split", gate="sigmoid"),
    BlockIndexSpec(num_heads=2, key_dim=16, top_k=16, pool=4),
    GatedStreamSpec(num_rows=4, rank=32),
    TinyNgram(least_rows=50).spec(8, QWEN35_SPEC.vocab_size, end_id=3),
)

FLASH_NEXT_125B_SPEC = _flash_next(
    changed(
        QWEN35_35B_SPEC,
        name="Qwen3.8-Flash-Next's shape",
        architecture=ARCHITECTURES["qwen4exp"],
        num_layers=48,
        hidden=2560,
        num_heads=24,
        num_experts=512,
        num_experts_used=10,
        width=640,
    ),
    DeltaNetSpec(48, 16, 128, 128, conv_taps=4, heads_alternate=True, beta_layout="split", gate="sigmoid"),
    BlockIndexSpec(num_heads=4, key_dim=128, top_k=2048, pool=4),
    GatedStreamSpec(num_rows=4, rank=320),
    TinyNgram(heads_per_length=8, least_rows=20_000_000).spec(160, 248320, end_id=248046),
)
