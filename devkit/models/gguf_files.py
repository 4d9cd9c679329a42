"""Writes small GGUF files of any shape, valid or wrong in exactly one place. Their weights are zeros."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast.families.architecture import GATING_NUMBERS, ClampedSilu
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.stream import GatedStreamSpec
from ballast.model.spec import ModelSpec
from ballast.model.tensors import OUTPUT, ROPE_FACTORS, expected_tensors
from devkit.models.changed_spec import experts_of

_QWEN = ("qwen3moe", "qwen3next", "qwen35moe", "qwen4exp")
"""Their files have no keys for the router's rule."""

Tensors = dict[str, tuple[NDArray[Any], GgmlType]]
"""Blocks and type by name."""


def metadata_of(spec: ModelSpec) -> dict[str, Any]:
    """The keys that a current conversion writes for `spec`."""
    mixer, rope, routing, experts = spec.attentions[0], spec.rope, spec.routing, experts_of(spec)
    # Layers without entries have no YaRN.
    yarn = next((each.yarn for each in spec.ropes if each.yarn is not None), None)
    keys: dict[str, Any] = {
        "block_count": spec.num_layers,
        "context_length": spec.context_length,
        "embedding_length": spec.hidden,
        "feed_forward_length": spec.widest_dense or experts.width,
        "attention.head_count": mixer.num_heads,
        "attention.layer_norm_rms_epsilon": spec.rms_eps,
        "rope.dimension_count": rope.dim,
        "rope.freq_base": rope.theta if spec.ropes else None,
        "expert_count": routing.num_experts,
        "expert_used_count": routing.num_experts_used,
        "expert_feed_forward_length": experts.width,
    }
    if isinstance(mixer, GroupedSpec):
        keys |= _grouped_keys(spec) | _delta_net_keys(spec) | _stream_keys(spec) | _block_keys(spec) | _ngram_keys(spec)
    elif isinstance(mixer, CompressedSpec):
        keys |= _compressed_keys(spec) | _stream_keys(spec)
    else:
        keys |= _latent_keys(mixer) | _index_keys(spec) | _kimi_delta_keys(spec) | _stream_keys(spec)
    if spec.architecture.has_limits:
        keys |= _limits(spec)
    if spec.architecture.name in ("hy_v3", "step35", "laguna", "qwen3next", "qwen35moe", "qwen4exp"):
        keys["expert_shared_feed_forward_length"] = experts.shared_width
    elif spec.architecture.name not in ("qwen3moe", "minimax-m2", "gpt-oss", "mimo2"):
        keys["expert_shared_count"] = experts.num_shared
    if spec.architecture.name not in (*_QWEN, "minimax-m2", "gpt-oss", "mimo2", "hy_v3"):
        keys["leading_dense_block_count"] = spec.routed_layers[0]
    if spec.architecture.name not in (*_QWEN, "dots1", "gpt-oss", "mimo2"):
        keys["expert_gating_func"] = GATING_NUMBERS[routing.gating]
    if spec.architecture.name not in (*_QWEN, "minimax-m2", "gpt-oss", "mimo2"):
        keys |= {
            "expert_weights_norm": routing.normalize_weights,
            "expert_weights_scale": routing.weights_scale,
        }
    if spec.routing.num_groups > 1 or spec.architecture.name in ("deepseek2", "deepseek32", "glm4moe"):
        keys |= {"expert_group_count": routing.num_groups, "expert_group_used_count": routing.num_groups_used}
    if yarn is not None:
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": yarn.factor,
            "rope.scaling.original_context_length": yarn.original_context,
        }
    if yarn is not None and spec.architecture.name == "laguna":
        keys["rope.scaling.yarn_attn_factor"] = yarn.attention_factor
    elif yarn is not None and spec.architecture.name != "gpt-oss":
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * yarn.mscale_all_dim
    if yarn is not None and spec.architecture.name != "gpt-oss":
        keys |= {
            "rope.scaling.yarn_beta_fast": yarn.beta_fast,
            "rope.scaling.yarn_beta_slow": yarn.beta_slow,
        }
    if rope.query_scale is not None:
        keys["attention.temperature_scale"] = rope.query_scale.beta
        keys["attention.temperature_length"] = rope.query_scale.length
    named = {"general.architecture": spec.architecture.name, "general.name": spec.name}
    return named | {f"{spec.architecture.name}.{key}": value for key, value in keys.items()}


def _limits(spec: ModelSpec) -> dict[str, Any]:
    """The limits of units by layer; 0 for none."""
    units = [
        (layer.feed_forward.unit, None) if layer.experts is None else (layer.experts.shared_unit, layer.experts.unit)
        for layer in spec.layers
    ]
    shared, experts = (
        [unit.limit if isinstance(unit, ClampedSilu) else 0.0 for unit in each] for each in zip(*units, strict=True)
    )
    return {"swiglu_clamp_exp": experts, "swiglu_clamp_shexp": shared}


def _grouped_keys(spec: ModelSpec) -> dict[str, Any]:
    """One number where all layers have the same, else a list."""
    architecture = spec.architecture
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, GroupedSpec)]
    first, windowed = mixers[0], next((mixer for mixer in mixers if mixer.window is not None), None)
    full = next((mixer for mixer in mixers if mixer.window is None), first)
    keys: dict[str, Any] = {
        "attention.head_count": _of_layers([mixer.num_heads for mixer in mixers]),
        "attention.head_count_kv": _of_layers([mixer.num_kv_heads for mixer in mixers]),
        "attention.key_length": first.head_dim,
        "attention.value_length": first.v_dim,
        "rope.dimension_count": full.rope.dim * (2 if architecture.halves_full_rope else 1),
    }
    if architecture.scales_values:
        keys["attention.value_scale"] = first.value_scale
    if windowed is None:
        return keys
    names_layers = architecture.windows is not None and architecture.windows.period is None
    return keys | {
        "attention.sliding_window": windowed.window,
        "attention.sliding_window_pattern": [mixer.window is not None for mixer in mixers] if names_layers else None,
        "rope.freq_base_swa": windowed.rope.theta if windowed.rope.theta != full.rope.theta else None,
        "rope.dimension_count_swa": windowed.rope.dim if windowed.rope.dim != keys["rope.dimension_count"] else None,
    }


def _delta_net_keys(spec: ModelSpec) -> dict[str, Any]:
    is_recurrent = [isinstance(layer.mixer, DeltaNetSpec) for layer in spec.layers]
    mixer = next((layer.mixer for layer in spec.layers if isinstance(layer.mixer, DeltaNetSpec)), None)
    if mixer is None:
        return {}
    pairs = spec.rope.dim // 2
    return {
        "attention.recurrent_layers": is_recurrent,
        "rope.dimension_sections": [pairs, 0, 0, 0] if spec.architecture.names_rope_sections else None,
        "ssm.conv_kernel": mixer.conv_taps,
        "ssm.group_count": mixer.num_key_heads,
        "ssm.inner_size": mixer.value_width,
        "ssm.state_size": mixer.key_dim,
        "ssm.time_step_rank": mixer.num_heads,
    }


def _kimi_delta_keys(spec: ModelSpec) -> dict[str, Any]:
    mixers = [layer.mixer for layer in spec.layers]
    mixer = next((each for each in mixers if isinstance(each, KimiDeltaSpec)), None)
    if mixer is None:
        return {}
    return {
        "attention.head_count_kv": [0 if isinstance(each, KimiDeltaSpec) else 1 for each in mixers],
        "kda.gate_lower_bound": mixer.lower_bound or None,
        "kda.head_dim": mixer.head_dim,
        "ssm.conv_kernel": mixer.conv_taps,
    }


def _stream_keys(spec: ModelSpec) -> dict[str, Any]:
    if spec.stream is None:
        return {}
    if isinstance(spec.stream, GatedStreamSpec):
        return {"hyper_connection.count": spec.stream.num_rows, "hyper_connection.low_rank": spec.stream.rank}
    return {
        "hyper_connection.count": spec.stream.num_rows,
        "hyper_connection.sinkhorn_iterations": spec.stream.rounds,
        "hyper_connection.epsilon": spec.stream.eps,
    }


def _block_keys(spec: ModelSpec) -> dict[str, Any]:
    indexes = [layer.mixer.index if isinstance(layer.mixer, GroupedSpec) else None for layer in spec.layers]
    first = next((index for index in indexes if index is not None), None)
    if first is None:
        return {}
    return {
        "attention.compress_ratios": [0 if index is None else index.pool for index in indexes],
        "attention.indexer.head_count": first.num_heads,
        "attention.indexer.key_length": first.key_dim,
        "attention.indexer.top_k": first.top_k,
    }


def _ngram_keys(spec: ModelSpec) -> dict[str, Any]:
    ngram = spec.ngram
    if ngram is None:
        return {}
    most = len(ngram.multipliers)
    return {
        "embedding_length_per_layer_input": ngram.row_width,
        "ple.conv_kernel": ngram.conv_taps,
        "ple.eos_token_id": ngram.end_id,
        "ple.head_offsets": list(ngram.head_offsets),
        "ple.head_vocab_sizes": list(ngram.head_sizes),
        "ple.heads_per_ngram": len(ngram.head_sizes) // (most - 1),
        "ple.layer_multipliers": list(ngram.multipliers),
        "ple.layers": [layer for layer, each in enumerate(spec.layers) if each.ngram is not None],
        "ple.ngram_size": most,
    }


def _of_layers(values: list[int]) -> int | list[int]:
    return values if len(set(values)) > 1 else values[0]


def _compressed_keys(spec: ModelSpec) -> dict[str, Any]:
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, CompressedSpec)]
    first, entries = mixers[0], next((mixer for mixer in mixers if mixer.ratio), None)
    index = next((mixer.index for mixer in mixers if mixer.index is not None), None)
    hashed = [layer.experts is not None and layer.experts.table_rows > 0 for layer in spec.layers]
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": first.head_dim,
        "attention.value_length": first.head_dim,
        "attention.q_lora_rank": first.q_lora_rank,
        "attention.sliding_window": first.window,
        "attention.output_group_count": first.output_groups,
        "attention.output_lora_rank": first.output_rank,
        "attention.compress_ratios": [mixer.ratio for mixer in mixers],
        "attention.compress_rope_freq_base": entries and entries.rope.theta,
        "attention.indexer.head_count": index and index.num_heads,
        "attention.indexer.key_length": index and index.key_dim,
        "attention.indexer.top_k": index and index.top_k,
        "hash_layer_count": sum(hashed),
    }


def _latent_keys(latent: LatentSpec) -> dict[str, Any]:
    split = latent.mla_layout == "split"
    return {
        "attention.head_count_kv": 1 if split else latent.num_heads,
        "attention.key_length": latent.latent_dim if split else latent.query_dim,
        "attention.value_length": latent.kv_lora_rank if split else latent.v_dim,
        "attention.key_length_mla": latent.query_dim if split else None,
        "attention.value_length_mla": latent.v_dim if split else None,
        "attention.q_lora_rank": latent.q_lora_rank,
        "attention.kv_lora_rank": latent.kv_lora_rank,
    }


def _index_keys(spec: ModelSpec) -> dict[str, Any]:
    if not spec.choices:
        return {}
    first, types = (
        spec.choices[0],
        [each.mixer.has_indexer for each in spec.layers if isinstance(each.mixer, LatentSpec)],
    )
    return {
        "attention.indexer.head_count": first.num_heads,
        "attention.indexer.key_length": first.key_dim,
        "attention.indexer.top_k": first.top_k,
        "attention.indexer.kpool": first.pool if first.pool > 1 else None,
        "attention.indexer.kpool_select_tail": True if first.pool > 1 else None,
        "attention.indexer.types": None if all(types) else types,
    }


def shapes_of(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor that the model reads."""
    return {name: tensor.shape for name, tensor in expected_tensors(spec).items()}


def stored_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name → shape in a file of a current conversion, where some tensors have one more dimension, of 1."""
    is_glm = spec.architecture.name == "glm5-next"
    return {
        name: each.shape
        if not each.has_ones or (is_glm and name.endswith("ssm_a"))
        else (each.shape[0], 1, *each.shape[1:])
        for name, each in expected_tensors(spec).items()
    }


def write_model(
    path: Path,
    spec: ModelSpec,
    *,
    metadata: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
    types: Mapping[str, GgmlType] | None = None,
) -> Path:
    """Write `spec` as one file. `metadata` and `shapes` change or add entries, None removes one; `types` names tensors
    that are not F32."""
    all_shapes = shapes_of(spec) | dict(shapes or {})
    tensors = {name: shape for name, shape in all_shapes.items() if shape is not None}
    return write_gguf(
        path, metadata_of(spec) | dict(metadata or {}), tensors, types_of_tables(spec) | dict(types or {})
    )


def types_of_tables(spec: ModelSpec) -> dict[str, GgmlType]:
    """The types of tensors of whole numbers."""
    return {name: GgmlType.I32 for name, tensor in expected_tensors(spec).items() if tensor.below}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, GgmlType] | None = None,
) -> Path:
    """Write a file with these metadata (None is left out) and tensors of zeros."""
    writer = gguf.GGUFWriter(path, str(metadata.get("general.architecture", "")))
    add_metadata(writer, metadata)
    for name, shape in shapes.items():
        kind = (types or {}).get(name, GgmlType.F32)
        if kind == GgmlType.F32:
            writer.add_tensor(name, np.zeros(shape, np.float32))
        else:
            blocks = gguf.quant_shape_to_byte_shape(shape, kind)
            writer.add_tensor(name, np.zeros(blocks, np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_metadata(writer: gguf.GGUFWriter, metadata: Mapping[str, Any]) -> None:
    """Add each entry by its Python type; None is left out, and the architecture, which the writer adds itself."""
    for key, value in metadata.items():
        _add(writer, key, value)


def write_hollow_model(path: Path, spec: ModelSpec, types: Mapping[str, GgmlType]) -> Path:
    """Write `spec` at its full size as a sparse file: header and metadata, then a hole in place of the tensors.

    It takes almost no disk space. Tensors that `types` does not name are F32. The factors of rotations, which must be
    positive, are ones."""
    writer = gguf.GGUFWriter(path, spec.architecture.name)
    add_metadata(writer, metadata_of(spec))
    kinds, end = types_of_tables(spec) | dict(types), 0
    ones: dict[int, NDArray[np.float32]] = {}
    for name, shape in shapes_of(spec).items():
        kind = kinds.get(name, GgmlType.F32)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        num_bytes = int(np.prod(shape)) // block * block_bytes
        raw_shape = shape if kind == GgmlType.F32 else gguf.quant_shape_to_byte_shape(shape, kind)
        dtype = np.dtype(np.float32 if kind == GgmlType.F32 else np.uint8)
        writer.add_tensor_info(name, raw_shape, dtype, num_bytes, None if kind == GgmlType.F32 else kind)
        if name == ROPE_FACTORS:
            ones[end] = np.ones(shape, np.float32)
        end += writer.ggml_pad(num_bytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    begin = writer.ggml_pad(path.stat().st_size, writer.data_alignment)
    os.truncate(path, begin + end)
    with path.open("r+b") as file:
        for offset, values in ones.items():
            file.seek(begin + offset)
            file.write(values.tobytes())
    return path


def common_types(spec: ModelSpec) -> dict[str, GgmlType]:
    """The types of a Q4_K_M file: Q6_K for the output and every other down projection, Q8_0 where rows are no whole
    blocks of 256, Q4_K for everything else but norms, biases and routers."""
    types = {}
    for name, tensor in expected_tensors(spec).items():
        if not tensor.is_packed or tensor.group == "router" or tensor.is_added:
            continue
        is_fine = name == OUTPUT or ("ffn_down" in name and int(name.split(".")[1]) % 2 == 0)
        types[name] = (GgmlType.Q6_K if is_fine else GgmlType.Q4_K) if tensor.cols % 256 == 0 else GgmlType.Q8_0
    return types


def copy_model(source: Path, target: Path, change: Callable[[Tensors], Tensors] = lambda tensors: tensors) -> Path:
    """Copy a file's model without the vocabulary, with each tensor changed by `change`."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for name, field in reader.fields.items():
        if name.startswith(f"{arch}.") or name == "general.name":
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    writer.add_string("tokenizer.ggml.model", "none")
    for name, (data, kind) in change(
        {tensor.name: (tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    ).items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def write_shards(folder: Path, stem: str, spec: ModelSpec, count: int) -> list[Path]:
    """Write `spec` as `count` shards, the metadata in the first, as gguf-split does."""
    names = list(shapes_of(spec).items())
    files = []
    for index in range(count):
        split: dict[str, Any] = {"split.no": index, "split.count": count, "split.tensors.count": len(names)}
        metadata = (metadata_of(spec) if index == 0 else {}) | split
        file = folder / f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"
        files.append(write_gguf(file, metadata, dict(names[index::count])))
    return files


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if key == "general.architecture" or value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif _is_wide(key, value):
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)
    else:
        writer.add_array(key, value)


def _is_wide(key: str, values: Sequence[Any]) -> bool:
    """Whether a file has this list in 64 bits."""
    if not values or not all(isinstance(each, int) and each >= 0 for each in values):
        return False
    return max(values) >= 2**31 or key.endswith(("ple.head_offsets", "ple.head_vocab_sizes", "ple.layer_multipliers"))
