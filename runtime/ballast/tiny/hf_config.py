"""config.json and generation_config.json of tiny models."""

from __future__ import annotations

from typing import Any

from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.grouped import QK_NORM, QKV_BIAS
from ballast.model.layers.stream import GatedStreamSpec, StreamSpec
from ballast.tiny.hf_parts import layer_types, mlp_types, rope_scaling
from ballast.tiny.metadata import has_window, head_counts
from ballast.tiny.shape import TinyShape
from ballast.tiny.tokenizer import TinyTokenizer


def hf_config(shape: TinyShape, tokenizer: TinyTokenizer, num_rows: int) -> dict[str, Any]:
    """config.json, with the keys of the real models."""
    makers = {
        "deepseek2": _deepseek_config,
        "deepseek32": _deepseek_config,
        "deepseek4": _deepseek4_config,
        "glm-dsa": _deepseek_config,
        "kimi-linear": _kimi_linear_config,
        "glm5-next": _glm_next_config,
        "glm4moe": _glm_config,
        "minimax-m2": _minimax_config,
        "hy_v3": _hy3_config,
        "dots1": _dots_config,
        "gpt-oss": _gpt_oss_config,
        "qwen3moe": _qwen3_config,
        "qwen3next": _qwen3_next_config,
        "qwen35moe": _qwen35_config,
        "qwen4exp": _flash_next_config,
        "step35": _step_config,
        "mimo2": _mimo_config,
        "laguna": _laguna_config,
        "mistral4": _mistral_config,
    }
    own = (_mistral_config if shape.family == "mistral" else makers[shape.architecture])(shape)
    common: dict[str, Any] = {
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_id(tokenizer.bos),
        "eos_token_id": tokenizer.token_id(tokenizer.eos),
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn_dim,
        "max_position_embeddings": shape.context_length,
        "moe_intermediate_size": shape.expert_dim,
        "norm_topk_prob": shape.normalize_weights,
        "num_attention_heads": shape.num_heads,
        "num_experts_per_tok": shape.num_experts_used,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_heads if shape.heads is None else shape.heads.num_kv_heads,
        "rms_norm_eps": shape.rms_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": num_rows,
    }
    if "rope_parameters" not in own and ARCHITECTURES[shape.architecture].rotates:
        common["rope_scaling"] = None if shape.yarn is None else rope_scaling(shape)
    return own | common | own


_SPARSE = {
    "deepseek32": ("DeepseekV32ForCausalLM", "deepseek_v32"),
    "glm-dsa": ("GlmMoeDsaForCausalLM", "glm_moe_dsa"),
}


def _deepseek_config(shape: TinyShape) -> dict[str, Any]:
    is_v3 = shape.family != "v2"
    v2_topk_method = "greedy" if shape.num_groups == 1 else "group_limited_greedy"
    names = {"v2": ("DeepseekV2ForCausalLM", "deepseek_v2"), "glm": ("Glm4MoeLiteForCausalLM", "glm4_moe_lite")}
    architecture, model_type = names.get(shape.family, ("DeepseekV3ForCausalLM", "deepseek_v3"))
    index: dict[str, Any] = {}
    if shape.index is not None:
        architecture, model_type = _SPARSE[shape.architecture]
        index = {
            "index_head_dim": shape.index.key_dim,
            "index_n_heads": shape.index.num_heads,
            "index_topk": shape.index.top_k,
        }
        if shape.index.shared_layers:
            shared = shape.index.shared_layers
            index["indexer_types"] = ["shared" if layer in shared else "full" for layer in range(shape.num_layers)]
    return index | {
        "architectures": [architecture],
        "attention_bias": False,
        "first_k_dense_replace": shape.num_dense_layers,
        "kv_lora_rank": shape.kv_lora_rank,
        "mlp_layer_types": mlp_types(shape),
        "model_type": model_type,
        "moe_layer_freq": 1,
        "n_group": shape.num_groups,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": shape.num_shared_experts,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": shape.q_lora_rank,
        "qk_nope_head_dim": shape.nope_dim,
        "qk_rope_head_dim": shape.rope_dim,
        "routed_scaling_factor": shape.weights_scale,
        "scoring_func": shape.gating,
        "topk_group": shape.num_groups_used,
        "topk_method": "noaux_tc" if is_v3 else v2_topk_method,
        "v_head_dim": shape.v_dim,
    }


def _kimi_linear_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.kimi_delta is not None
    net, layers = shape.kimi_delta, range(shape.num_layers)
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "first_k_dense_replace": shape.num_dense_layers,
        "kv_lora_rank": shape.kv_lora_rank,
        "linear_attn_config": {
            "full_attn_layers": [layer + 1 for layer in net.attention_layers],
            "head_dim": net.head_dim,
            "kda_layers": [layer + 1 for layer in layers if layer not in net.attention_layers],
            "num_heads": shape.num_heads,
            "short_conv_kernel_size": net.conv_taps,
        },
        "mla_use_nope": True,
        "model_type": "kimi_linear",
        "moe_layer_freq": 1,
        "moe_renormalize": shape.normalize_weights,
        "moe_router_activation_func": shape.gating,
        "num_expert_group": shape.num_groups,
        "num_experts": shape.num_experts,
        "num_experts_per_token": shape.num_experts_used,
        "num_shared_experts": shape.num_shared_experts,
        "pad_token_id": None,
        "q_lora_rank": shape.q_lora_rank,
        "qk_nope_head_dim": shape.nope_dim,
        "qk_rope_head_dim": shape.rope_dim,
        "routed_scaling_factor": shape.weights_scale,
        "topk_group": shape.num_groups_used,
        "use_grouped_topk": True,
        "v_head_dim": shape.v_dim,
    }


def _glm_next_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.kimi_delta is not None
    assert shape.index is not None
    assert shape.limits is not None
    assert isinstance(shape.stream, StreamSpec)
    net, layers = shape.kimi_delta, range(shape.num_layers)
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "attention_bias": False,
        "hc_eps": shape.stream.eps,
        "hc_mult": shape.stream.num_rows,
        "hc_sinkhorn_iters": shape.stream.rounds,
        "index_head_dim": shape.index.key_dim,
        "index_kpool": shape.index.pool,
        "index_kpool_always_select_tail": True,
        "index_n_heads": shape.index.num_heads,
        "index_topk": shape.index.top_k,
        "indexer_types": ["full" for _ in layers],
        "kv_lora_rank": shape.kv_lora_rank,
        "layer_types": [
            "indexed_attention" if layer in net.attention_layers else "linear_attention" for layer in layers
        ],
        "linear_conv_kernel_dim": net.conv_taps,
        "linear_head_dim": net.head_dim,
        "linear_lower_bound": net.lower_bound or None,
        "linear_num_heads": shape.num_heads,
        "mlp_layer_types": mlp_types(shape),
        "model_type": "glm5_next_text",
        "n_group": shape.num_groups,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": shape.num_shared_experts,
        "pad_token_id": None,
        "q_lora_rank": shape.q_lora_rank,
        "qk_nope_head_dim": shape.nope_dim,
        "qk_rope_head_dim": shape.rope_dim,
        "routed_scaling_factor": shape.weights_scale,
        "swiglu_limit": shape.limits.experts[-1],
        "topk_group": shape.num_groups_used,
        "v_head_dim": shape.v_dim,
    }


def _deepseek4_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.compressed is not None
    assert shape.index is not None
    assert shape.limits is not None
    assert isinstance(shape.stream, StreamSpec)
    compressed = shape.compressed
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "attention_bias": False,
        "compress_ratios": list(compressed.ratios),
        "compress_rope_theta": compressed.theta,
        "hc_eps": shape.stream.eps,
        "hc_mult": shape.stream.num_rows,
        "hc_sinkhorn_iters": shape.stream.rounds,
        "head_dim": compressed.head_dim,
        "index_head_dim": shape.index.key_dim,
        "index_n_heads": shape.index.num_heads,
        "index_topk": shape.index.top_k,
        "intermediate_size": shape.expert_dim,
        "model_type": "deepseek_v4",
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": shape.num_shared_experts,
        "num_hash_layers": compressed.num_hashed,
        "num_key_value_heads": 1,
        "o_groups": compressed.output_groups,
        "o_lora_rank": compressed.output_rank,
        "q_lora_rank": shape.q_lora_rank,
        "qk_rope_head_dim": shape.rope_dim,
        "rope_parameters": {"rope_type": "yarn", **rope_scaling(shape)},
        "routed_scaling_factor": shape.weights_scale,
        "scoring_func": shape.gating,
        "sliding_window": compressed.window,
        "swiglu_limit": shape.limits.experts[-1],
    }


def _mistral_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.yarn is not None
    rope = {
        **rope_scaling(shape),
        "llama_4_scaling_beta": shape.query_beta,
        "rope_theta": shape.rope_theta,
        "rope_type": "yarn",
    }
    return _deepseek_config(shape) | {
        "architectures": ["Mistral4ForCausalLM"],
        "model_type": "mistral4",
        "rope_interleave": True,
        "rope_parameters": rope,
    }


def _qwen3_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": shape.heads.head_dim,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "num_experts": shape.num_experts,
    }


def _qwen3_next_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    assert shape.delta_net is not None
    net, layers = shape.delta_net, range(shape.num_layers)
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": shape.heads.head_dim,
        "layer_types": ["linear_attention" if net.has(layer) else "full_attention" for layer in layers],
        "linear_conv_kernel_dim": net.conv_taps,
        "linear_key_head_dim": net.width,
        "linear_num_key_heads": net.num_key_heads,
        "linear_num_value_heads": net.num_heads,
        "linear_value_head_dim": net.width,
        "mlp_only_layers": [],
        "model_type": "qwen3_next",
        "num_experts": shape.num_experts,
        "rope_parameters": {
            "partial_rotary_factor": shape.rope_dim / shape.heads.head_dim,
            "rope_theta": shape.rope_theta,
            "rope_type": "default",
        },
        "shared_expert_intermediate_size": shape.expert_dim * shape.num_shared_experts,
    }


def _qwen35_config(shape: TinyShape) -> dict[str, Any]:
    left_out = ("decoder_sparse_step", "mlp_only_layers")
    config = {name: value for name, value in _qwen3_next_config(shape).items() if name not in left_out}
    return config | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}


def _flash_next_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.index is not None
    assert isinstance(shape.stream, GatedStreamSpec)
    own = {
        "architectures": ["Qwen4ExpForCausalLM"],
        "hc_count": shape.stream.num_rows,
        "hc_lowrank": shape.stream.rank,
        "indexer_budget": shape.index.top_k,
        "indexer_compress_ratio": shape.index.pool,
        "indexer_head_dim": shape.index.key_dim,
        "indexer_kv_heads": 1,
        "indexer_n_heads": shape.index.num_heads,
        "model_type": "qwen4_exp_text",
        "output_gate_type": "sigmoid",
    }
    if shape.ngram is not None:
        own |= {
            "heads_per_ngram": shape.ngram.heads_per_length,
            "ngram_size": shape.ngram.most_tokens,
            "ngram_vocab_size_base": shape.ngram.least_rows,
            "ple_conv_kernel_size": shape.ngram.conv_taps,
            "ple_layer_ids": [shape.ngram.layer + 1],
        }
    return _qwen35_config(shape) | own


def _glm_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": QKV_BIAS in shape.heads.options,
        "first_k_dense_replace": shape.num_dense_layers,
        "head_dim": shape.heads.head_dim,
        "model_type": "glm4_moe",
        "n_group": shape.num_groups,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": shape.num_shared_experts,
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": shape.rope_dim / shape.heads.head_dim,
        "routed_scaling_factor": shape.weights_scale,
        "topk_group": shape.num_groups_used,
        "use_qk_norm": QK_NORM in shape.heads.options,
    }


def _minimax_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    return {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "head_dim": shape.heads.head_dim,
        "model_type": "minimax_m2",
        "num_local_experts": shape.num_experts,
        "rotary_dim": shape.rope_dim,
        "scoring_func": shape.gating,
        "use_qk_norm": True,
        "use_routing_bias": True,
    }


def _hy3_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    return {
        "architectures": ["HYV3ForCausalLM"],
        "first_k_dense_replace": shape.num_dense_layers,
        "head_dim": shape.heads.head_dim,
        "model_type": "hy_v3",
        "num_experts": shape.num_experts,
        "num_shared_experts": shape.num_shared_experts,
        "qk_norm": True,
        "route_norm": True,
        "router_scaling_factor": shape.weights_scale,
    }


def _dots_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    return {
        "architectures": ["Dots1ForCausalLM"],
        "attention_bias": False,
        "first_k_dense_replace": shape.num_dense_layers,
        "head_dim": shape.heads.head_dim,
        "model_type": "dots1",
        "n_group": shape.num_groups,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": shape.num_shared_experts,
        "routed_scaling_factor": shape.weights_scale,
        "sliding_window": None,
        "topk_group": shape.num_groups_used,
    }


def _gpt_oss_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "head_dim": shape.heads.head_dim,
        "layer_types": layer_types(shape, shape.heads),
        "model_type": "gpt_oss",
        "num_local_experts": shape.num_experts,
        "sliding_window": shape.heads.window,
        "swiglu_limit": 7.0,
    }


def _step_config(shape: TinyShape) -> dict[str, Any]:
    assert shape.heads is not None
    assert shape.factors is not None
    assert shape.limits is not None
    windowed = has_window(shape, shape.heads)
    return {
        "architectures": ["Step3p5ForCausalLM"],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": shape.heads.windowed_heads,
            "num_attention_groups": shape.heads.num_kv_heads,
            "head_dim": shape.heads.head_dim,
        },
        "head_dim": shape.heads.head_dim,
        "layer_types": layer_types(shape, shape.heads),
        "model_type": "step3p5",
        "moe_layers_enum": ",".join(map(str, range(shape.num_dense_layers, shape.num_layers))),
        "moe_num_experts": shape.num_experts,
        "moe_router_scaling_factor": shape.weights_scale,
        "moe_top_k": shape.num_experts_used,
        "num_attention_groups": shape.heads.num_kv_heads,
        "partial_rotary_factors": [1.0 if each else 0.5 for each in windowed],
        "rope_scaling": {
            "factor": shape.factors.factor,
            "high_freq_factor": shape.factors.fast_rotations,
            "low_freq_factor": shape.factors.slow_rotations,
            "original_max_position_embeddings": shape.factors.original_context,
            "rope_type": "llama3",
        },
        "rope_theta": [shape.heads.windowed_theta if each else shape.rope_theta for each in windowed],
        "share_expert_dim": shape.expert_dim * shape.num_shared_experts,
        "sliding_window": shape.heads.window,
        "swiglu_limits": list(shape.limits.experts),
        "swiglu_limits_shared": list(shape.limits.shared),
    }


def _mimo_config(shape: TinyShape) -> dict[str, Any]:
    heads = shape.heads
    assert heads is not None
    rope = {"partial_rotary_factor": shape.rope_dim / heads.head_dim, "rope_type": "default"}
    return {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "attention_bias": False,
        "attention_value_scale": heads.value_scale,
        "head_dim": heads.head_dim,
        "layer_types": layer_types(shape, heads),
        "mlp_layer_types": mlp_types(shape),
        "model_type": "mimo_v2_flash",
        "n_group": shape.num_groups,
        "n_routed_experts": shape.num_experts,
        "rope_parameters": {
            "full_attention": {**rope, "rope_theta": shape.rope_theta},
            "sliding_attention": {**rope, "rope_theta": heads.windowed_theta},
        },
        "routed_scaling_factor": shape.weights_scale,
        "sliding_window": heads.window,
        "swa_num_key_value_heads": heads.windowed_kv_heads,
        "swa_rope_theta": heads.windowed_theta,
        "topk_group": shape.num_groups_used,
        "v_head_dim": heads.value_dim,
    }


def _laguna_config(shape: TinyShape) -> dict[str, Any]:
    heads = shape.heads
    assert heads is not None
    full = {**rope_scaling(shape), "rope_theta": shape.rope_theta, "rope_type": "yarn"}
    windowed_dim = heads.windowed_rope_dim or shape.rope_dim
    windowed = {"rope_theta": heads.windowed_theta or shape.rope_theta, "rope_type": "default"}
    return {
        "architectures": ["LagunaForCausalLM"],
        "attention_bias": False,
        "gating": "per-element" if heads.gates_entries else True,
        "head_dim": heads.head_dim,
        "layer_types": layer_types(shape, heads),
        "mlp_layer_types": mlp_types(shape),
        "model_type": "laguna",
        "moe_routed_scaling_factor": shape.weights_scale,
        "num_attention_heads_per_layer": head_counts(shape, heads),
        "num_experts": shape.num_experts,
        "rope_parameters": {
            "full_attention": {**full, "partial_rotary_factor": shape.rope_dim / heads.head_dim},
            "sliding_attention": {**windowed, "partial_rotary_factor": windowed_dim / heads.head_dim},
        },
        "shared_expert_intermediate_size": shape.expert_dim * shape.num_shared_experts,
        "sliding_window": heads.window or 0,
    }


def generation_config(shape: TinyShape, tokenizer: TinyTokenizer) -> dict[str, Any]:
    return {
        "bos_token_id": tokenizer.token_id(tokenizer.bos),
        "do_sample": True,
        "eos_token_id": tokenizer.token_id(tokenizer.eos),
        "temperature": 0.3 if shape.family == "v2" else 0.6,
        "top_p": 0.95,
    }
