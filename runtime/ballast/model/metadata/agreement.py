"""Compares config.json with the spec that was read from the GGUF."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.feed_forward import DenseSpec
from ballast.model.layers.grouped import GATE, GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import LayerSpec, Mixer, RecurrentMixer
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.metadata.hf_config import HfConfig
from ballast.model.metadata.keys import Keys, is_number
from ballast.model.spec import ModelSpec
from ballast.model.tensors import ROPE_FACTORS


def check_config(keys: Keys, spec: ModelSpec, config: HfConfig) -> None:
    """Raises ModelError, with both values, where the two contradict each other."""
    _check_refused(keys, config)
    for name, found, configured in _pairs(keys, spec, config):
        if found is not None and configured is not None and not _agree(found, configured):
            raise keys.refuse(
                f"{name} is {found} in this file and {configured} in config.json; expected files of the same model"
            )
    if config.yarn is not None and spec.ropes and all(rope.yarn is None for rope in spec.ropes):
        raise keys.refuse("config.json has YaRN positions and this file has none; expected files of the same model")
    if config.has_factors and keys.architecture.halves_full_rope and not keys.has_tensor(ROPE_FACTORS):
        raise keys.refuse(
            f"config.json divides frequencies (llama3) and this file has no {ROPE_FACTORS}; convert the model again"
        )


def _check_refused(keys: Keys, config: HfConfig) -> None:
    """Refuse what only config.json tells and is not computed here."""
    if config.mla_use_nope is False and not keys.architecture.rotates:
        raise keys.refuse("config.json has mla_use_nope=false; expected true: positions do not rotate in these models")
    if config.moe_router_logit_softcapping:
        raise keys.refuse(
            f"config.json has moe_router_logit_softcapping={config.moe_router_logit_softcapping:g}; "
            "expected 0: a limit of the router's logits is not supported"
        )
    if config.moe_apply_router_weight_on_input:
        raise keys.refuse(
            "config.json has moe_apply_router_weight_on_input=true; expected false: weights of experts multiply their "
            "results"
        )


def _pairs(keys: Keys, spec: ModelSpec, config: HfConfig) -> Sequence[tuple[str, object, object]]:
    """(name, the file's value, config.json's); None where one of them says nothing."""
    routing, rope = spec.routing, spec.rope
    uses_groups = not (routing.gating == "softmax" and config.is_greedy)
    pairs: list[tuple[str, object, object]] = [
        ("hidden_size", spec.hidden, config.hidden_size),
        ("num_hidden_layers", spec.num_layers, config.num_hidden_layers),
        ("first_k_dense_replace", spec.routed_layers[0], config.first_k_dense_replace),
        *dict.fromkeys(pair for n, layer in enumerate(spec.layers) for pair in _layer(n, layer, config)),
        *_indexer(keys, spec, config),
        ("n_routed_experts", routing.num_experts, config.n_routed_experts),
        ("num_experts", routing.num_experts, config.num_experts),
        ("num_local_experts", routing.num_experts, config.num_local_experts),
        ("num_experts_per_tok", routing.num_experts_used, config.num_experts_per_tok),
        ("num_experts_per_token", routing.num_experts_used, config.num_experts_per_token),
        ("scoring_func", routing.gating, config.scoring_func),
        ("moe_router_activation_func", routing.gating, config.moe_router_activation_func),
        ("n_group", routing.num_groups, config.n_group if uses_groups else None),
        ("topk_group", routing.num_groups_used, config.topk_group if uses_groups else None),
        ("num_expert_group", routing.num_groups, config.num_expert_group),
        ("norm_topk_prob", routing.normalize_weights, config.norm_topk_prob),
        ("moe_renormalize", routing.normalize_weights, config.moe_renormalize),
        ("routed_scaling_factor", routing.weights_scale, config.routed_scaling_factor),
        ("moe_routed_scaling_factor", routing.weights_scale, config.moe_routed_scaling_factor),
        ("rms_norm_eps", spec.rms_eps, config.rms_norm_eps),
        ("rope_theta", rope.theta, config.theta if spec.ropes else None),
        *_kimi_layers(spec, config),
        *_stream(spec, config),
    ]
    rope = next((each for each in spec.ropes if each.yarn is not None), rope)
    if rope.yarn is not None and config.yarn is not None:
        original = config.yarn.original_max_position_embeddings
        pairs += [
            ("rope_scaling.factor", rope.yarn.factor, config.yarn.factor),
            ("rope_scaling.original_max_position_embeddings", rope.yarn.original_context, original),
            ("rope_scaling.mscale_all_dim", rope.yarn.mscale_all_dim, config.yarn.mscale_all_dim),
            ("llama_4_scaling_beta", rope.query_scale and rope.query_scale.beta, config.yarn.llama_4_scaling_beta),
        ]
    return pairs


def _layer(number: int, layer: LayerSpec, config: HfConfig) -> list[tuple[str, object, object]]:
    feed_forward = layer.feed_forward
    names = {DeltaNetSpec: "linear_num_value_heads", KimiDeltaSpec: "linear_attn_config.num_heads"}
    heads = names.get(type(layer.mixer), "num_attention_heads")
    of_heads = [
        (heads, layer.mixer.num_heads, _num_heads(number, layer.mixer, config)),
        *_mixer(layer.mixer, config),
    ]
    if isinstance(feed_forward, DenseSpec):
        return [*of_heads, ("intermediate_size", feed_forward.width, config.intermediate_size)]
    return [
        *of_heads,
        ("n_shared_experts", feed_forward.num_shared, config.n_shared_experts),
        ("num_shared_experts", feed_forward.num_shared, config.num_shared_experts),
        ("moe_intermediate_size", feed_forward.width, config.moe_intermediate_size),
    ]


def _num_heads(number: int, mixer: Mixer, config: HfConfig) -> int | None:
    if isinstance(mixer, DeltaNetSpec):
        return config.linear_num_value_heads
    if isinstance(mixer, KimiDeltaSpec):
        return None if config.linear_attn_config is None else config.linear_attn_config.num_heads
    return config.num_heads(number, has_window=isinstance(mixer, GroupedSpec) and mixer.window is not None)


def _mixer(mixer: Mixer, config: HfConfig) -> list[tuple[str, object, object]]:
    if isinstance(mixer, GroupedSpec):
        has_window = mixer.window is not None
        swa_heads = config.swa_num_key_value_heads if has_window else None
        return [
            ("num_key_value_heads", mixer.num_kv_heads, None if swa_heads else config.num_key_value_heads),
            ("swa_num_key_value_heads", mixer.num_kv_heads, swa_heads),
            ("attention_value_scale", mixer.value_scale, config.attention_value_scale),
            ("swa_rope_theta", mixer.rope.theta, config.windowed_theta if has_window else None),
            ("gating", _gating(mixer), config.gates),
            ("head_dim", mixer.head_dim, config.head_dim),
            ("sliding_window", mixer.window, config.sliding_window),
            *_blocks(mixer, config),
        ]
    if isinstance(mixer, DeltaNetSpec):
        return [
            ("linear_num_key_heads", mixer.num_key_heads, config.linear_num_key_heads),
            ("linear_key_head_dim", mixer.key_dim, config.linear_key_head_dim),
            ("linear_value_head_dim", mixer.v_dim, config.linear_value_head_dim),
            ("linear_conv_kernel_dim", mixer.conv_taps, config.linear_conv_kernel_dim),
        ]
    if isinstance(mixer, KimiDeltaSpec):
        own = config.linear_attn_config
        return [
            ("linear_attn_config.head_dim", mixer.head_dim, own and own.head_dim),
            ("linear_attn_config.short_conv_kernel_size", mixer.conv_taps, own and own.short_conv_kernel_size),
        ]
    if isinstance(mixer, CompressedSpec):
        index = mixer.index
        return [
            ("head_dim", mixer.head_dim, config.head_dim),
            ("qk_rope_head_dim", mixer.rope.dim, config.qk_rope_head_dim),
            ("q_lora_rank", mixer.q_lora_rank, config.q_lora_rank),
            ("sliding_window", mixer.window, config.sliding_window),
            ("o_groups", mixer.output_groups, config.o_groups),
            ("o_lora_rank", mixer.output_rank, config.o_lora_rank),
            ("index_n_heads", index and index.num_heads, config.index_n_heads),
            ("index_head_dim", index and index.key_dim, config.index_head_dim),
            ("index_topk", index and index.top_k, config.index_topk),
        ]
    pairs: list[tuple[str, object, object]] = [
        ("kv_lora_rank", mixer.kv_lora_rank, config.kv_lora_rank),
        ("qk_nope_head_dim", mixer.nope_dim, config.qk_nope_head_dim),
        ("qk_rope_head_dim", mixer.rope.dim, config.qk_rope_head_dim),
        ("v_head_dim", mixer.v_dim, config.v_head_dim),
    ]
    if "q_lora_rank" in config.model_fields_set:  # null says that there is none
        pairs.append(("q_lora_rank", mixer.q_lora_rank or 0, config.q_lora_rank or 0))
    return pairs


def _blocks(mixer: GroupedSpec, config: HfConfig) -> list[tuple[str, object, object]]:
    index = mixer.index
    if index is None:
        return []
    return [
        ("indexer_n_heads", index.num_heads, config.indexer_n_heads),
        ("indexer_head_dim", index.key_dim, config.indexer_head_dim),
        ("indexer_compress_ratio", index.pool, config.indexer_compress_ratio),
    ]


def _stream(spec: ModelSpec, config: HfConfig) -> list[tuple[str, object, object]]:
    if not isinstance(spec.stream, GatedStreamSpec):
        return []
    return [("hc_count", spec.stream.num_rows, config.hc_count), ("hc_lowrank", spec.stream.rank, config.hc_lowrank)]


def _kimi_layers(spec: ModelSpec, config: HfConfig) -> list[tuple[str, object, object]]:
    """The layers with attention, which config.json counts from 1."""
    configured = config.linear_attn_config and config.linear_attn_config.full_attn_layers
    if configured is None:
        return []
    found = [number for number, layer in enumerate(spec.layers, 1) if not isinstance(layer.mixer, RecurrentMixer)]
    return [("linear_attn_config.full_attn_layers", found, sorted(configured))]


def _gating(mixer: GroupedSpec) -> str | None:
    """As config.json names it."""
    return ("per-element" if mixer.gates_entries else "per-head") if GATE in mixer.options else None


def _indexer(keys: Keys, spec: ModelSpec, config: HfConfig) -> list[tuple[str, object, object]]:
    by_layer = [layer.mixer.index if isinstance(layer.mixer, LatentSpec) else None for layer in spec.layers]
    first = next((index for index in by_layer if index is not None), None)
    if first is None:
        return []
    pairs: list[tuple[str, object, object]] = [
        ("index_n_heads", first.num_heads, config.index_n_heads),
        ("index_head_dim", first.key_dim, config.index_head_dim),
        # The spec has no more than the context.
        ("index_topk", keys.whole("attention.indexer.top_k"), config.index_topk),
        ("index_kpool", first.pool, config.index_kpool),
    ]
    types = config.indexer_types
    if types is None:
        return pairs
    # Those of layers that predict further tokens may follow.
    pairs.append(("the length of indexer_types", spec.num_layers, min(len(types), spec.num_layers)))
    for layer, (index, configured) in enumerate(zip(by_layer, types, strict=False)):
        if index is not None:  # of recurrent layers the type says nothing
            pairs.append((f"indexer_types of layer {layer}", "full" if index.has_indexer else "shared", configured))
    return pairs


def _agree(found: object, configured: object) -> bool:
    if is_number(found) and is_number(configured):
        return math.isclose(found, configured, rel_tol=1e-5)  # floats are float32 in the file
    return found == configured
