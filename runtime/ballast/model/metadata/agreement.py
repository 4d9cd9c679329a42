"""Compares config.json with the spec that was read from the GGUF."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ballast.model.metadata.hf_config import HfConfig
from ballast.model.metadata.keys import Keys, is_number
from ballast.model.spec import GroupedSpec, LatentSpec, ModelSpec


def check_config(keys: Keys, spec: ModelSpec, config: HfConfig) -> None:
    """Raises ModelError, with both values, where the two contradict each other."""
    for name, found, configured in _pairs(keys, spec, config):
        if found is not None and configured is not None and not _agree(found, configured):
            raise keys.refuse(
                f"{name} is {found} in this file and {configured} in config.json; expected files of the same model"
            )
    if config.yarn is not None and spec.yarn is None:
        raise keys.refuse("config.json has YaRN positions and this file has none; expected files of the same model")


def _pairs(keys: Keys, spec: ModelSpec, config: HfConfig) -> Sequence[tuple[str, object, object]]:
    """(name, the file's value, config.json's); None where one of them says nothing."""
    uses_groups = not (spec.gating == "softmax" and config.is_greedy)
    pairs: list[tuple[str, object, object]] = [
        ("hidden_size", spec.hidden, config.hidden_size),
        ("num_hidden_layers", spec.num_layers, config.num_hidden_layers),
        ("first_k_dense_replace", spec.num_dense_layers, config.first_k_dense_replace),
        ("intermediate_size", spec.ffn_dim or None, config.intermediate_size),
        ("num_attention_heads", spec.num_heads, config.num_attention_heads),
        *_attention(spec.attention, config),
        *_indexer(keys, spec, config),
        ("n_routed_experts", spec.num_experts, config.n_routed_experts),
        ("num_experts", spec.num_experts, config.num_experts),
        ("num_experts_per_tok", spec.num_experts_used, config.num_experts_per_tok),
        ("n_shared_experts", spec.num_shared_experts, config.n_shared_experts),
        ("moe_intermediate_size", spec.expert_dim, config.moe_intermediate_size),
        ("scoring_func", spec.gating, config.scoring_func),
        ("n_group", spec.num_groups, config.n_group if uses_groups else None),
        ("topk_group", spec.num_groups_used, config.topk_group if uses_groups else None),
        ("norm_topk_prob", spec.normalize_weights, config.norm_topk_prob),
        ("routed_scaling_factor", spec.weights_scale, config.routed_scaling_factor),
        ("rms_norm_eps", spec.rms_eps, config.rms_norm_eps),
        ("rope_theta", spec.rope_theta, config.theta),
    ]
    if spec.yarn is not None and config.yarn is not None:
        original = config.yarn.original_max_position_embeddings
        pairs += [
            ("rope_scaling.factor", spec.yarn.factor, config.yarn.factor),
            ("rope_scaling.original_max_position_embeddings", spec.yarn.original_context, original),
            ("rope_scaling.mscale_all_dim", spec.yarn.mscale_all_dim, config.yarn.mscale_all_dim),
        ]
    return pairs


def _attention(attention: LatentSpec | GroupedSpec, config: HfConfig) -> list[tuple[str, object, object]]:
    if isinstance(attention, GroupedSpec):
        return [
            ("num_key_value_heads", attention.num_kv_heads, config.num_key_value_heads),
            ("head_dim", attention.head_dim, config.head_dim),
        ]
    pairs: list[tuple[str, object, object]] = [
        ("kv_lora_rank", attention.kv_lora_rank, config.kv_lora_rank),
        ("qk_nope_head_dim", attention.nope_dim, config.qk_nope_head_dim),
        ("qk_rope_head_dim", attention.rope_dim, config.qk_rope_head_dim),
        ("v_head_dim", attention.v_dim, config.v_head_dim),
    ]
    if "q_lora_rank" in config.model_fields_set:  # null says that there is none
        pairs.append(("q_lora_rank", attention.q_lora_rank or 0, config.q_lora_rank or 0))
    return pairs


def _indexer(keys: Keys, spec: ModelSpec, config: HfConfig) -> list[tuple[str, object, object]]:
    if spec.index is None:
        return []
    pairs: list[tuple[str, object, object]] = [
        ("index_n_heads", spec.index.num_heads, config.index_n_heads),
        ("index_head_dim", spec.index.key_dim, config.index_head_dim),
        # The spec has no more than the context.
        ("index_topk", keys.whole("attention.indexer.top_k"), config.index_topk),
    ]
    types = config.indexer_types
    if types is None:
        return pairs
    # Those of layers that predict further tokens may follow.
    pairs.append(("the length of indexer_types", spec.num_layers, min(len(types), spec.num_layers)))
    for layer, (has_one, configured) in enumerate(zip(spec.index.layers, types, strict=False)):
        pairs.append((f"indexer_types of layer {layer}", "full" if has_one else "shared", configured))
    return pairs


def _agree(found: object, configured: object) -> bool:
    if is_number(found) and is_number(configured):
        return math.isclose(found, configured, rel_tol=1e-5)  # floats are float32 in the file
    return found == configured
