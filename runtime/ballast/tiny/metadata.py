"""The GGUF metadata of tiny models."""

from __future__ import annotations

from gguf import GGUFValueType, GGUFWriter, LlamaFileType

from ballast.families.architecture import GATING_NUMBERS
from ballast.families.registry import ARCHITECTURES
from ballast.model.layers.stream import GatedStreamSpec
from ballast.text.gguf_vocab import TokenType
from ballast.tiny.shape import TinyCompressed, TinyHeads, TinyShape
from ballast.tiny.tokenizer import TinyTokenizer


def add_metadata(
    writer: GGUFWriter, shape: TinyShape, mla: str, num_rows: int, file_type: LlamaFileType, end_id: int
) -> None:
    """The `general.*` keys and the architecture's, as conversions of the real models write them. `end_id`: the token
    that ends a text."""
    writer.add_type("model")
    writer.add_name(shape.name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    numbers = {
        "block_count": shape.num_layers,
        "context_length": shape.context_length,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn_dim,
        "vocab_size": num_rows,
        "rope.dimension_count": shape.rope_dim,
        "expert_feed_forward_length": shape.expert_dim,
        "expert_count": shape.num_experts,
        "expert_used_count": shape.num_experts_used,
        **_layer_counts(shape),
        **{f"attention.{name}": value for name, value in _attention(shape, mla).items()},
        **_delta_net(shape),
        **_kimi_delta(shape),
    }
    if shape.compressed is not None:
        numbers["hash_layer_count"] = shape.compressed.num_hashed
    elif not shape.old_keys and shape.heads is None:
        numbers |= {"expert_group_count": shape.num_groups, "expert_group_used_count": shape.num_groups_used}
    for name, value in numbers.items():
        writer.add_uint32(f"{shape.architecture}.{name}", value)
    _add_by_layer(writer, shape)
    _add_stream(writer, shape)
    _add_ngram(writer, shape, num_rows, end_id)
    _add_sections(writer, shape)
    writer.add_float32(f"{shape.architecture}.attention.layer_norm_rms_epsilon", shape.rms_eps)
    if shape.rope_dim:
        writer.add_float32(f"{shape.architecture}.rope.freq_base", shape.rope_theta)
    _add_index(writer, shape)
    _add_routing(writer, shape)
    _add_yarn(writer, shape)
    _add_query_scale(writer, shape)


def _layer_counts(shape: TinyShape) -> dict[str, int]:
    if shape.architecture in ("gpt-oss", "mimo2"):
        return {}  # their files do not contain it
    if shape.architecture in ("step35", "laguna"):
        shared = {"expert_shared_feed_forward_length": shape.expert_dim * shape.num_shared_experts}
        return {"leading_dense_block_count": shape.num_dense_layers, **shared}
    if not shape.counts_layers:
        return {"expert_shared_feed_forward_length": shape.expert_dim * shape.num_shared_experts}
    return {"leading_dense_block_count": shape.num_dense_layers, "expert_shared_count": shape.num_shared_experts}


def _delta_net(shape: TinyShape) -> dict[str, int]:
    net = shape.delta_net
    if net is None:
        return {}
    return {
        "full_attention_interval": net.interval,
        "ssm.conv_kernel": net.conv_taps,
        "ssm.group_count": net.num_key_heads,
        "ssm.inner_size": net.num_heads * net.width,
        "ssm.state_size": net.width,
        "ssm.time_step_rank": net.num_heads,
    }


def _kimi_delta(shape: TinyShape) -> dict[str, int]:
    """The keys that apply to all layers; `_add_by_layer` adds the heads of keys and values."""
    if shape.kimi_delta is None:
        return {}
    return {"ssm.conv_kernel": shape.kimi_delta.conv_taps, "kda.head_dim": shape.kimi_delta.head_dim}


def _attention(shape: TinyShape, mla: str) -> dict[str, int]:
    if shape.heads is not None:
        return _head_numbers(shape, shape.heads)
    if shape.compressed is not None:
        return _compressed_numbers(shape, shape.compressed)
    latent = shape.kv_lora_rank
    head_lengths = {"key_length": shape.nope_dim + shape.rope_dim, "value_length": shape.v_dim}
    attention = {"head_count": shape.num_heads, "kv_lora_rank": latent}
    if shape.q_lora_rank is not None:
        attention["q_lora_rank"] = shape.q_lora_rank
    # With absorbed projections, all heads share one key and value: the latent.
    if shape.kimi_delta is None:
        attention["head_count_kv"] = shape.num_heads if mla == "joint" else 1
    if mla == "joint":
        return attention | head_lengths
    attention |= {"key_length": latent + shape.rope_dim, "value_length": latent}
    return attention | {f"{name}_mla": length for name, length in head_lengths.items()}


def _compressed_numbers(shape: TinyShape, compressed: TinyCompressed) -> dict[str, int]:
    """The keys that apply to all layers; `_add_by_layer` adds the others."""
    assert shape.q_lora_rank is not None
    return {
        "head_count": shape.num_heads,
        "head_count_kv": 1,
        "key_length": compressed.head_dim,
        "value_length": compressed.head_dim,
        "q_lora_rank": shape.q_lora_rank,
        "sliding_window": compressed.window,
        "output_group_count": compressed.output_groups,
        "output_lora_rank": compressed.output_rank,
    }


def _head_numbers(shape: TinyShape, heads: TinyHeads) -> dict[str, int]:
    """The keys that apply to all layers; `_add_by_layer` adds the others."""
    numbers = {"key_length": heads.head_dim, "value_length": heads.value_dim}
    if heads.windowed_heads is None:
        numbers["head_count"] = shape.num_heads
    if heads.windowed_layers is None:
        numbers["head_count_kv"] = heads.num_kv_heads
    if heads.window is not None:
        numbers["sliding_window"] = heads.window
    return numbers


def _add_sections(writer: GGUFWriter, shape: TinyShape) -> None:
    if ARCHITECTURES[shape.architecture].names_rope_sections:
        pairs, third = shape.rope_dim // 2, shape.rope_dim // 6
        writer.add_array(f"{shape.architecture}.rope.dimension_sections", [pairs - 2 * third, third, third, 0])


def _add_by_layer(writer: GGUFWriter, shape: TinyShape) -> None:
    """What a file lists by layer, and what differs in layers with a window."""
    heads, layers, prefix = shape.heads, range(shape.num_layers), shape.architecture
    if shape.kimi_delta is not None:
        counts = [int(layer in shape.kimi_delta.attention_layers) for layer in layers]
        writer.add_array(f"{prefix}.attention.head_count_kv", counts)
        if shape.kimi_delta.lower_bound:
            writer.add_float32(f"{prefix}.kda.gate_lower_bound", shape.kimi_delta.lower_bound)
    if shape.limits is not None:
        writer.add_array(f"{prefix}.swiglu_clamp_exp", list(shape.limits.experts))
        writer.add_array(f"{prefix}.swiglu_clamp_shexp", list(shape.limits.shared))
    if shape.compressed is not None:
        writer.add_array(f"{prefix}.attention.compress_ratios", list(shape.compressed.ratios))
        writer.add_float32(f"{prefix}.attention.compress_rope_freq_base", shape.compressed.theta)
    if heads is None:
        return
    if heads.windowed_layers is not None:
        writer.add_array(f"{prefix}.attention.sliding_window_pattern", has_window(shape, heads))
        writer.add_array(f"{prefix}.attention.head_count_kv", [heads.kv_heads(layer) for layer in layers])
    if heads.windowed_heads is not None:
        writer.add_array(f"{prefix}.attention.head_count", head_counts(shape, heads))
    if heads.windowed_theta is not None:
        writer.add_float32(f"{prefix}.rope.freq_base_swa", heads.windowed_theta)
    if heads.windowed_rope_dim is not None:
        writer.add_uint32(f"{prefix}.rope.dimension_count_swa", heads.windowed_rope_dim)
    if ARCHITECTURES[prefix].scales_values:
        writer.add_float32(f"{prefix}.attention.value_scale", heads.value_scale)


def _add_stream(writer: GGUFWriter, shape: TinyShape) -> None:
    if shape.stream is None:
        return
    connection = f"{shape.architecture}.hyper_connection"
    writer.add_uint32(f"{connection}.count", shape.stream.num_rows)
    if isinstance(shape.stream, GatedStreamSpec):
        writer.add_uint32(f"{connection}.low_rank", shape.stream.rank)
        return
    writer.add_uint32(f"{connection}.sinkhorn_iterations", shape.stream.rounds)
    writer.add_float32(f"{connection}.epsilon", shape.stream.eps)


def _add_ngram(writer: GGUFWriter, shape: TinyShape, num_rows: int, end_id: int) -> None:
    ngram = shape.ngram
    if ngram is None:
        return
    writer.add_array(f"{shape.architecture}.ple.layers", [ngram.layer])
    numbers = {
        "embedding_length_per_layer_input": shape.hidden // len(ngram.head_sizes),
        "ple.conv_kernel": ngram.conv_taps,
        "ple.eos_token_id": end_id,
        "ple.heads_per_ngram": ngram.heads_per_length,
        "ple.ngram_size": ngram.most_tokens,
    }
    for name, value in numbers.items():
        writer.add_uint32(f"{shape.architecture}.{name}", value)
    lists = {
        "layer_multipliers": ngram.multipliers(num_rows),
        "head_offsets": ngram.head_offsets,
        "head_vocab_sizes": ngram.head_sizes,
    }
    for name, values in lists.items():
        key = f"{shape.architecture}.ple.{name}"
        writer.add_key_value(key, list(values), GGUFValueType.ARRAY, GGUFValueType.UINT64)


def has_window(shape: TinyShape, heads: TinyHeads) -> list[bool]:
    """Whether each layer has a window."""
    rule = ARCHITECTURES[shape.architecture].windows
    return [heads.has_window(layer, rule) for layer in range(shape.num_layers)]


def head_counts(shape: TinyShape, heads: TinyHeads) -> list[int]:
    """Heads of each layer's queries."""
    return [(heads.windowed_heads if each else None) or shape.num_heads for each in has_window(shape, heads)]


def _add_index(writer: GGUFWriter, shape: TinyShape) -> None:
    if shape.index is None:
        return
    indexer = f"{shape.architecture}.attention.indexer"
    writer.add_uint32(f"{indexer}.head_count", shape.index.num_heads)
    writer.add_uint32(f"{indexer}.key_length", shape.index.key_dim)
    writer.add_uint32(f"{indexer}.top_k", shape.index.top_k)
    if shape.heads is not None:
        ratios = [
            0 if shape.delta_net and shape.delta_net.has(layer) else shape.index.pool
            for layer in range(shape.num_layers)
        ]
        writer.add_array(f"{shape.architecture}.attention.compress_ratios", ratios)
    elif shape.index.pool > 1:
        writer.add_uint32(f"{indexer}.kpool", shape.index.pool)
        writer.add_bool(f"{indexer}.kpool_select_tail", True)
    if shape.index.shared_layers:
        writer.add_array(
            f"{indexer}.types", [layer not in shape.index.shared_layers for layer in range(shape.num_layers)]
        )


def _add_routing(writer: GGUFWriter, shape: TinyShape) -> None:
    if shape.architecture in ("qwen3moe", "qwen3next", "qwen35moe", "qwen4exp", "gpt-oss", "mimo2"):
        return  # their files do not contain it
    if shape.architecture == "minimax-m2":  # its files contain only this
        writer.add_uint32(f"{shape.architecture}.expert_gating_func", GATING_NUMBERS["sigmoid"])
        return
    writer.add_float32(f"{shape.architecture}.expert_weights_scale", shape.weights_scale)
    if shape.gating == "softmax" and shape.old_keys:
        return
    if shape.architecture != "mistral4":  # its files do not contain it
        writer.add_uint32(f"{shape.architecture}.expert_gating_func", GATING_NUMBERS[shape.gating])
    writer.add_bool(f"{shape.architecture}.expert_weights_norm", shape.normalize_weights)


def _add_yarn(writer: GGUFWriter, shape: TinyShape) -> None:
    if shape.yarn is None:
        return
    scaling = f"{shape.architecture}.rope.scaling"
    writer.add_string(f"{scaling}.type", "yarn")
    writer.add_float32(f"{scaling}.factor", shape.yarn.factor)
    writer.add_uint32(f"{scaling}.original_context_length", shape.yarn.original_context)
    if shape.yarn.attention_factor is not None:
        writer.add_float32(f"{scaling}.yarn_attn_factor", shape.yarn.attention_factor)
    if not shape.yarn.is_plain:
        writer.add_float32(f"{scaling}.yarn_log_multiplier", 0.1 * shape.yarn.mscale_all_dim)
    if shape.yarn.has_betas and not shape.old_keys:
        writer.add_float32(f"{scaling}.yarn_beta_fast", shape.yarn.beta_fast)
        writer.add_float32(f"{scaling}.yarn_beta_slow", shape.yarn.beta_slow)


def _add_query_scale(writer: GGUFWriter, shape: TinyShape) -> None:
    if not shape.query_beta or shape.architecture == "mistral4":
        return  # its files do not contain it
    assert shape.yarn is not None
    writer.add_float32(f"{shape.architecture}.attention.temperature_scale", shape.query_beta)
    writer.add_uint32(f"{shape.architecture}.attention.temperature_length", shape.yarn.original_context)


def add_tokenizer(writer: GGUFWriter, tokenizer: TinyTokenizer, num_rows: int) -> None:
    """The `tokenizer.*` keys. As in conversions, rows without a token are listed as `[PADn]` of type UNUSED."""
    padding = range(tokenizer.num_tokens, num_rows)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list([*tokenizer.tokens(), *(f"[PAD{row}]" for row in padding)])
    writer.add_token_types([*tokenizer.token_types(), *(TokenType.UNUSED for _ in padding)])
    writer.add_token_merges(tokenizer.merges())
    writer.add_bos_token_id(tokenizer.token_id(tokenizer.bos))
    writer.add_eos_token_id(tokenizer.token_id(tokenizer.eos))
    writer.add_pad_token_id(tokenizer.token_id(tokenizer.pad))
    writer.add_add_bos_token(tokenizer.adds_bos)
    writer.add_add_eos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
