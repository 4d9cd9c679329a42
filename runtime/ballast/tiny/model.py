"""Writes tiny models of every supported architecture: real layouts and head sizes, random weights, a few megabytes."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from ballast.errors import ConfigError
from ballast.model.spec import ModelSpec
from ballast.model.tensors import EMBEDDING, OUTPUT, SCALED_TYPES, expected_tensors, scale_name
from ballast.tiny import hf_config, metadata, weights
from ballast.tiny.presets import PRESETS
from ballast.tiny.quant_mix import check_quant, file_type, types_for
from ballast.tiny.shape import TinyShape
from ballast.tiny.spec import spec_of
from ballast.tiny.tokenizer import TinyTokenizer, make_tokenizer
from ballast.weights.quantize import matrix_scales, quantize

LAYOUTS = ("split", "joint")
_STEM = "model"
_MODEL_FILE = re.compile(rf"{_STEM}(-\d{{5}}-of-\d{{5}})?\.gguf")
_ROWS_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The files of a tiny model."""

    gguf: Path
    """The file, or the first of its shards."""
    config_dir: Path
    """A directory for --model_path: config.json, tokenizer.json, tokenizer_config.json, generation_config.json."""


def write_tiny_model(
    directory: Path,
    *,
    arch: str = "v3",
    mla: str = "split",
    quant: str = "q4_k",
    seed: int = 0,
    overrides: TinyShape | None = None,
    num_shards: int = 1,
) -> TinyModel:
    """Write `directory`/model.gguf (or its shards) and `directory`/config/, replacing an earlier model there.

    The same arguments give the same bytes. The same seed and shape give the same weights before quantisation, in every
    layout and type. `overrides` replaces the shape of `arch`.
    Raises ConfigError for an unknown arch, mla or quant, and for an invalid number of shards.
    """
    if arch not in PRESETS:
        raise ConfigError("arch", arch, f"expected one of {', '.join(PRESETS)}")
    if seed < 0:
        raise ConfigError("seed", seed, "expected a whole number, at least 0")
    shape = overrides or PRESETS[arch]
    tokenizer = make_tokenizer(shape.family)
    num_rows = rows_for(tokenizer.num_tokens)
    tensors = weights.tensors(shape, tokenizer.num_tokens, num_rows, seed)
    return write_model(directory, shape, tokenizer, tensors, mla=mla, quant=quant, num_shards=num_shards)


def write_model(
    directory: Path,
    shape: TinyShape,
    tokenizer: TinyTokenizer,
    tensors: Iterable[tuple[str, weights.Floats]],
    *,
    mla: str = "split",
    quant: str = "q4_k",
    num_shards: int = 1,
) -> TinyModel:
    """Write `tensors`, which are in the joint layout, like `write_tiny_model`, with the same errors."""
    if mla not in LAYOUTS:
        raise ConfigError("mla", mla, f"expected one of {', '.join(LAYOUTS)}")
    if mla == "joint" and not shape.has_latents:
        raise ConfigError("mla", mla, f"{shape.name} has no latent attention; expected split")
    check_quant(quant)
    laid_out = list(_in_layout(tensors, shape, mla))
    num_rows = next(len(values) for name, values in laid_out if name == OUTPUT)
    written = list(_of_types(laid_out, spec_of(shape, num_rows, "joint" if mla == "joint" else "split"), quant))

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "directory", directory, f"cannot be created: {error.strerror}; choose another folder"
        ) from None
    # Written to a temporary folder and moved, so that readers never see a partial file. A server may have mapped the
    # old one.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".writing-") as scratch:
        writer = GGUFWriter(
            Path(scratch) / f"{_STEM}.gguf", shape.architecture, split_max_tensors=_per_shard(written, num_shards)
        )
        end_id = tokenizer.token_id(tokenizer.eos)
        metadata.add_metadata(writer, shape, mla, num_rows, file_type(quant), end_id)
        metadata.add_tokenizer(writer, tokenizer, num_rows)
        for name, values, ggml_type in written:
            if ggml_type == GGMLQuantizationType.I32:
                writer.add_tensor(name, values.astype(np.int32))
            else:
                writer.add_tensor(name, quantize(values, ggml_type), raw_dtype=ggml_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        files = _replace(directory, Path(scratch))
    _write_config(directory / "config", shape, tokenizer, num_rows)
    return TinyModel(files[0], directory / "config")


def rows_for(num_tokens: int) -> int:
    """Rows of embedding and output: at least one more than the number of tokens, as in real models."""
    return (num_tokens // _ROWS_MULTIPLE + 1) * _ROWS_MULTIPLE


def _in_layout(
    tensors: Iterable[tuple[str, weights.Floats]], shape: TinyShape, mla: str
) -> Iterator[tuple[str, weights.Floats]]:
    for name, values in tensors:
        if mla == "joint" or not name.endswith("attn_kv_b.weight"):
            yield name, values
            continue
        heads = values.reshape(shape.num_heads, shape.nope_dim + shape.v_dim, shape.kv_lora_rank)
        keys, of_values = heads[:, : shape.nope_dim], heads[:, shape.nope_dim :]
        # The key half is stored as absorption multiplies by it: [heads, kv_lora_rank, nope].
        yield name.replace("kv_b", "k_b"), np.ascontiguousarray(keys.transpose(0, 2, 1))
        yield name.replace("kv_b", "v_b"), np.ascontiguousarray(of_values)


def _of_types(
    tensors: Iterable[tuple[str, weights.Floats]], spec: ModelSpec, quant: str
) -> Iterator[tuple[str, weights.Floats, GGMLQuantizationType]]:
    """The tensors with their types under `quant`; tensors with a scale in the file are divided by it and followed by
    it, as in published files."""
    declared, types = expected_tensors(spec), types_for(spec, quant)
    for name, values in tensors:
        ggml_type = types[name]
        if ggml_type not in SCALED_TYPES or name == EMBEDDING:
            yield name, values, ggml_type
            continue
        num_experts = declared[name].num_experts
        scales = matrix_scales(values, num_experts, ggml_type)
        by_part = scales.reshape(num_experts, *(1,) * (values.ndim - 1)) if num_experts > 1 else scales
        yield name, values / by_part, ggml_type
        yield scale_name(name), scales, GGMLQuantizationType.F32


def _per_shard(tensors: list[Any], num_shards: int) -> int:
    """Tensors per shard; 0 for a single file."""
    if num_shards == 1:
        return 0
    sizes = range(1, len(tensors) + 1)
    possible = {math.ceil(len(tensors) / size) for size in sizes}  # all shards but the last have the same size
    if num_shards not in possible:
        nearest = sorted(possible, key=lambda number: abs(number - num_shards))[:2]
        numbers = " or ".join(map(str, sorted(nearest)))
        expected = f"expected a number such as {numbers}, which are possible with {len(tensors)} tensors"
        raise ConfigError("num_shards", num_shards, expected)
    return math.ceil(len(tensors) / num_shards)


def _replace(directory: Path, scratch: Path) -> list[Path]:
    """Move the files in `scratch` to `directory` and delete an earlier model's. Returns the new files in order."""
    new = sorted(file.name for file in scratch.iterdir())
    for file in directory.iterdir():
        if _MODEL_FILE.fullmatch(file.name) and file.name not in new:
            file.unlink()
    return [(scratch / name).replace(directory / name) for name in new]


def _write_config(config_dir: Path, shape: TinyShape, tokenizer: TinyTokenizer, num_rows: int) -> None:
    config_dir.mkdir(exist_ok=True)
    files = {
        "config.json": hf_config.hf_config(shape, tokenizer, num_rows),
        "tokenizer.json": json.loads(tokenizer.backend.to_str()),
        "tokenizer_config.json": tokenizer.config(shape.context_length),
        "generation_config.json": hf_config.generation_config(shape, tokenizer),
    }
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=2)
        (config_dir / name).write_text(f"{text}\n", encoding="utf-8")
