"""The shapes of tiny models, by name."""

from __future__ import annotations

from dataclasses import replace

from ballast.errors import ConfigError
from ballast.families.glm.architecture import EARLY_NEXT_ARCHITECTURE, NEXT_ARCHITECTURE
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import GATE, OUTPUT_BIAS, QK_NORM, QKV_BIAS, SINKS
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.tiny.shape import (
    TinyCompressed,
    TinyDeltaNet,
    TinyFactors,
    TinyHeads,
    TinyIndex,
    TinyKimiDelta,
    TinyLimits,
    TinyNgram,
    TinyShape,
    TinyYarn,
)

V2_LITE = TinyShape(
    name="Tiny DeepSeek V2-Lite",
    family="v2",
    gating="softmax",
    q_lora_rank=None,
    v_dim=32,
    num_shared_experts=2,
    expert_dim=352,  # like the real 1408, no multiple of 256: rows that no 256-weight block fits
    yarn=TinyYarn(mscale=0.707, mscale_all_dim=0.707),
)

V2 = TinyShape(
    name="Tiny DeepSeek V2",
    family="v2",
    gating="softmax",
    q_lora_rank=128,
    nope_dim=32,  # unlike v_dim, so that mixed-up halves of a head cannot go unnoticed
    num_shared_experts=2,
    num_groups=4,
    num_groups_used=2,
    weights_scale=16.0,
)

V3 = TinyShape(
    name="Tiny DeepSeek V3",
    family="v3",
    gating="sigmoid",
    num_groups=4,
    num_groups_used=2,
    normalize_weights=True,
    weights_scale=2.5,
)

V32 = replace(
    V3, name="Tiny DeepSeek V3.2", family="v32", architecture="deepseek32", num_layers=3, nope_dim=32, index=TinyIndex()
)

K2 = TinyShape(
    name="Tiny Kimi K2",
    family="kimi",
    gating="sigmoid",
    num_layers=3,
    num_experts=24,
    num_experts_used=6,
    normalize_weights=True,
    weights_scale=2.827,
    rope_theta=50000.0,
    yarn=TinyYarn(factor=32.0, beta_fast=1.0),
)

K25 = replace(K2, name="Tiny Kimi K2.5", yarn=TinyYarn(factor=64.0, beta_fast=32.0))

KIMI_LINEAR = TinyShape(
    name="Tiny Kimi Linear",
    family="kimi",
    gating="sigmoid",
    architecture="kimi-linear",
    num_layers=5,
    q_lora_rank=None,
    nope_dim=32,  # unlike v_dim, so that mixed-up halves of a head cannot go unnoticed
    normalize_weights=True,
    weights_scale=2.446,
    yarn=None,
    kimi_delta=TinyKimiDelta(attention_layers=(2, 4)),
)

GLM47_FLASH = TinyShape(
    name="Tiny GLM-4.7-Flash",
    family="glm",
    gating="sigmoid",
    num_layers=3,
    num_heads=3,
    q_lora_rank=192,
    nope_dim=192,
    v_dim=256,
    normalize_weights=True,
    weights_scale=1.8,
    rope_theta=1e6,
    yarn=None,
)

GLM5 = replace(
    GLM47_FLASH,
    name="Tiny GLM-5",
    architecture="glm-dsa",
    num_layers=6,
    q_lora_rank=256,
    num_heads=4,
    weights_scale=2.5,
    index=TinyIndex(shared_layers=(3, 4)),
)

GLM53_FLASH = TinyShape(
    name="Tiny GLM-5.3-Flash",
    family="glm53",
    gating="sigmoid",
    architecture="glm5-next",
    num_layers=5,
    q_lora_rank=256,
    nope_dim=32,  # unlike v_dim, so that mixed-up halves of a head cannot go unnoticed
    rope_dim=0,
    normalize_weights=True,
    weights_scale=2.5,
    yarn=None,
    index=TinyIndex(pool=4),
    kimi_delta=TinyKimiDelta(attention_layers=(2, 4), lower_bound=-5.0),
    stream=StreamSpec(num_rows=4, rounds=20, eps=1e-6),
    limits=TinyLimits((0.5,) * 5, (0.5,) * 5),
)

V4 = TinyShape(
    name="Tiny DeepSeek V4",
    family="v4",
    gating="sqrtsoftplus",
    architecture="deepseek4",
    num_layers=5,
    num_dense_layers=0,
    rope_dim=32,
    num_experts=8,
    num_experts_used=2,
    normalize_weights=True,
    weights_scale=1.5,
    yarn=TinyYarn(factor=16.0, original_context=64, is_plain=True),
    index=TinyIndex(key_dim=64, top_k=8),
    compressed=TinyCompressed(ratios=(0, 0, 4, 128, 4), num_hashed=2),
    stream=StreamSpec(num_rows=4, rounds=20, eps=1e-6, weighs_end=True),
    limits=TinyLimits((0.5,) * 5, (0.5,) * 5),
)

QWEN3 = TinyShape(
    name="Tiny Qwen3-MoE",
    family="qwen3",
    gating="softmax",
    architecture="qwen3moe",
    num_layers=3,
    num_dense_layers=0,
    num_heads=6,
    heads=TinyHeads(),
    rope_dim=128,
    num_shared_experts=0,
    normalize_weights=True,
    rope_theta=1e6,
    yarn=None,
)

QWEN3_NEXT = TinyShape(
    name="Tiny Qwen3-Next",
    family="qwen3",
    gating="softmax",
    architecture="qwen3next",
    num_layers=4,
    num_dense_layers=0,
    heads=TinyHeads(head_dim=256),
    delta_net=TinyDeltaNet(),
    rope_dim=64,
    normalize_weights=True,
    rope_theta=1e7,
    yarn=None,
    counts_layers=False,
)

QWEN35 = replace(
    QWEN3_NEXT,
    name="Tiny Qwen3.5",
    family="qwen35",
    architecture="qwen35moe",
    delta_net=TinyDeltaNet(beta_layout="split", interval=2),
)

QWEN38_FLASH_NEXT = replace(
    QWEN35,
    name="Tiny Qwen3.8-Flash-Next",
    family="qwen38",
    architecture="qwen4exp",
    num_layers=6,
    delta_net=TinyDeltaNet(beta_layout="split"),
    expert_dim=320,  # like the real 640, no multiple of 256
    index=TinyIndex(pool=4),
    stream=GatedStreamSpec(num_rows=4, rank=96),
    ngram=TinyNgram(),
)

GLM45 = TinyShape(
    name="Tiny GLM-4.5",
    family="glm",
    gating="sigmoid",
    architecture="glm4moe",
    num_layers=3,
    num_heads=6,
    heads=TinyHeads(options=frozenset({QK_NORM, QKV_BIAS})),
    rope_dim=64,
    normalize_weights=True,
    weights_scale=2.5,
    rms_eps=1e-5,
    rope_theta=1e6,
    yarn=None,
)

GLM45_AIR = replace(GLM45, name="Tiny GLM-4.5-Air", heads=TinyHeads(options=frozenset({QKV_BIAS})), weights_scale=1.0)

MINIMAX_M2 = TinyShape(
    name="Tiny MiniMax-M2",
    family="minimax",
    gating="sigmoid",
    architecture="minimax-m2",
    num_layers=3,
    num_dense_layers=0,
    ffn_dim=256,  # its files have the experts' width in this key
    num_heads=6,
    heads=TinyHeads(),
    rope_dim=64,
    num_shared_experts=0,
    normalize_weights=True,
    rope_theta=5e6,
    yarn=None,
)

HY3 = TinyShape(
    name="Tiny Hunyuan 3",
    family="hy3",
    gating="sigmoid",
    architecture="hy_v3",
    num_layers=3,
    num_heads=6,
    heads=TinyHeads(),
    rope_dim=128,
    normalize_weights=True,
    weights_scale=2.826,
    rms_eps=1e-5,
    rope_theta=11158840.0,
    yarn=None,
    router_bias_name="exp_probs_b",
    counts_layers=False,
)

DOTS1 = TinyShape(
    name="Tiny dots.llm1",
    family="qwen3",
    gating="sigmoid",
    architecture="dots1",
    num_layers=3,
    heads=TinyHeads(num_kv_heads=4),  # as many as of queries
    rope_dim=128,
    num_shared_experts=2,
    expert_dim=352,  # like the real 1408, no multiple of 256
    normalize_weights=True,
    weights_scale=2.5,
    rope_theta=1e7,
    yarn=None,
)

GPT_OSS = TinyShape(
    name="Tiny gpt-oss",
    family="gpt-oss",
    gating="softmax",
    architecture="gpt-oss",
    num_dense_layers=0,
    hidden=288,  # like the real 2880, an odd multiple of 32 and none of 256
    ffn_dim=352,  # its files have the experts' width in this key
    expert_dim=352,
    num_heads=8,
    heads=TinyHeads(head_dim=64, options=frozenset({QKV_BIAS, OUTPUT_BIAS, SINKS}), window=16),
    num_shared_experts=0,
    normalize_weights=True,
    rms_eps=1e-5,
    rope_theta=150000.0,
    yarn=TinyYarn(factor=32.0, original_context=64, is_plain=True, has_betas=False),
)

STEP35 = TinyShape(
    name="Tiny Step-3.5-Flash",
    family="step",
    gating="sigmoid",
    architecture="step35",
    num_layers=5,
    heads=TinyHeads(
        options=frozenset({QK_NORM, GATE}),
        window=16,
        windowed_layers=(1, 2, 3),
        windowed_heads=6,
        windowed_theta=1e4,
    ),
    rope_dim=128,
    normalize_weights=True,
    weights_scale=3.0,
    rms_eps=1e-5,
    rope_theta=5e6,
    yarn=None,
    counts_layers=False,
    factors=TinyFactors(factor=2.0, original_context=32),
    limits=TinyLimits(experts=(0.0, 0.0, 0.0, 0.5, 0.5), shared=(0.5, 0.0, 0.0, 0.0, 1.0)),
)

MIMO_V2 = TinyShape(
    name="Tiny MiMo-V2",
    family="mimo",
    gating="sigmoid",
    architecture="mimo2",
    num_heads=8,
    heads=TinyHeads(
        head_dim=192,
        v_dim=128,
        options=frozenset(),
        window=16,
        windowed_layers=(1, 2),
        windowed_kv_heads=4,
        windowed_theta=10000.0,
        value_scale=0.707,
        fuses_qkv=True,
    ),
    rope_dim=64,
    num_shared_experts=0,
    normalize_weights=True,
    rms_eps=1e-5,
    rope_theta=5e6,
    yarn=None,
)

LAGUNA = TinyShape(
    name="Tiny Laguna",
    family="laguna",
    gating="sigmoid",
    architecture="laguna",
    num_layers=5,
    heads=TinyHeads(
        options=frozenset({QK_NORM, GATE}),
        window=16,
        windowed_heads=6,
        windowed_theta=1e4,
        windowed_rope_dim=128,
    ),
    rope_dim=64,
    normalize_weights=True,
    weights_scale=2.5,
    rope_theta=5e5,
    yarn=TinyYarn(factor=64.0, original_context=64, beta_fast=64.0, is_plain=True, attention_factor=1.0),
    counts_layers=False,
)

LAGUNA_M1 = replace(
    LAGUNA,
    name="Tiny Laguna M.1",
    num_layers=3,
    num_dense_layers=2,
    heads=TinyHeads(options=frozenset({QK_NORM, GATE}), gates_entries=True),
    weights_scale=1.0,
    yarn=TinyYarn(factor=32.0, original_context=64, beta_fast=64.0, is_plain=True),
)

MISTRAL4 = TinyShape(
    name="Tiny Mistral Small 4",
    family="mistral",
    gating="softmax",
    architecture="mistral4",
    num_layers=3,
    num_dense_layers=0,
    kv_lora_rank=256,
    v_dim=128,
    normalize_weights=True,
    yarn=TinyYarn(factor=32.0, original_context=16),
    context=2048,  # room for tools
    query_beta=0.1,
)

MISTRAL_LARGE3 = replace(
    MISTRAL4,
    name="Tiny Mistral Large 3",
    architecture="deepseek2",
    num_layers=4,
    num_dense_layers=1,
    kv_lora_rank=512,
    nope_dim=128,
    query_beta=0.3,
)

BALLAST_TINY = TinyShape(
    name="ballast-tiny",
    family="v3",
    gating="sigmoid",
    num_layers=6,
    num_dense_layers=1,
    hidden=256,
    ffn_dim=768,
    num_heads=4,
    q_lora_rank=256,
    num_experts=8,
    num_experts_used=2,
    expert_dim=256,
    num_groups=4,
    num_groups_used=2,
    normalize_weights=True,
    weights_scale=2.5,
    yarn=None,
)
"""The built-in model. Its latent is the real models' 512 + 64; rows for K-quants are multiples of 256."""

_SAME_ARITHMETIC = {EARLY_NEXT_ARCHITECTURE.name: NEXT_ARCHITECTURE.name}

PRESETS = {
    "v2lite": V2_LITE,
    "v2": V2,
    "v3": V3,
    "v32": V32,
    "k2": K2,
    "k25": K25,
    "kimilinear": KIMI_LINEAR,
    "glm47flash": GLM47_FLASH,
    "glm5": GLM5,
    "glm53flash": GLM53_FLASH,
    "v4": V4,
    "qwen3": QWEN3,
    "qwen3next": QWEN3_NEXT,
    "qwen35": QWEN35,
    "qwen38flashnext": QWEN38_FLASH_NEXT,
    "glm45": GLM45,
    "glm45air": GLM45_AIR,
    "minimaxm2": MINIMAX_M2,
    "hy3": HY3,
    "dots1": DOTS1,
    "gptoss": GPT_OSS,
    "step35": STEP35,
    "mimov2": MIMO_V2,
    "laguna": LAGUNA,
    "lagunam1": LAGUNA_M1,
    "mistral4": MISTRAL4,
    "mistrallarge3": MISTRAL_LARGE3,
}


def preset_of(name: str) -> str:
    """The preset of this name, or the first one with the arithmetic of this `general.architecture`. Raises ConfigError
    for other names."""
    if name in PRESETS:
        return name
    architecture = _SAME_ARITHMETIC.get(name, name)
    found = next((preset for preset, shape in PRESETS.items() if shape.architecture == architecture), None)
    if found is None:
        names = ", ".join(("ballast", *PRESETS))
        raise ConfigError("shape", name, f"expected {names}, or an architecture: {', '.join(ARCHITECTURES)}")
    return found
