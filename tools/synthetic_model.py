"""Writes a GGUF of DeepSeek-V2-Lite's shape with random weights, for measurements of speed. Its text means nothing.

python tools/synthetic_model.py FILE [--layers 27] [--seed 0]

Types are those of a Q4_K_M file; the smallest models have one dense layer and one of experts. There is no vocabulary:
prompts are token ids.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast.model.spec import LatentSpec, ModelSpec
from ballast.model.tensors import expected_tensors
from support.models.gguf_files import QWEN3_235B_SPEC, V2_LITE_SPEC, add_metadata, common_types, metadata_of
from support.models.random_blocks import random_blocks

V2_LITE = replace(
    V2_LITE_SPEC,
    name="DeepSeek-V2-Lite's shape",
    num_layers=27,
    vocab_size=102400,
    context_length=163840,
    hidden=2048,
    ffn_dim=10944,
    num_heads=16,
    attention=LatentSpec(q_lora_rank=None, kv_lora_rank=512, nope_dim=128, rope_dim=64, v_dim=128, mla_layout="split"),
    num_experts=64,
    num_experts_used=6,
    expert_dim=1408,
)

QWEN3_30B = replace(
    QWEN3_235B_SPEC,
    name="Qwen3-30B-A3B's shape",
    num_layers=48,
    hidden=2048,
    num_heads=32,
    expert_dim=768,
)

SHAPES = {"v2-lite": V2_LITE, "qwen3-30b": QWEN3_30B}

_DRAWN_ROWS = 1 << 10
"""As many are drawn for a tensor, and then repeated: drawing gigabytes takes minutes, and speed is the same."""

_SCALES = {GgmlType.Q4_K: 1e-4, GgmlType.Q6_K: 1e-5, GgmlType.Q8_0: 3e-4}
"""Of blocks, so that weights are about 0.02."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="v2-lite", help="default: %(default)s")
    parser.add_argument("--layers", type=int, help="fewer than the model's; V2-Lite's first is dense")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    num_layers = shape.num_layers if options.layers is None else options.layers
    if not 2 <= num_layers <= shape.num_layers:
        parser.error(f"--layers={num_layers}: 2 to {shape.num_layers}")
    if not options.file.resolve().parent.is_dir():
        parser.error(f"{options.file}: there is no folder {options.file.parent}")
    write_random_model(options.file, replace(shape, num_layers=num_layers), options.seed)


def write_random_model(file: Path, spec: ModelSpec, seed: int) -> None:
    """Write `spec` tensor by tensor, so that the weights need not fit into memory."""
    rng, types = np.random.default_rng(seed), common_types(spec)
    writer = gguf.GGUFWriter(file, spec.architecture.name)
    vocabulary = {
        "tokenizer.ggml.model": "none",
        f"{spec.architecture.name}.vocab_size": spec.vocab_size,
        "general.file_type": 15,
    }
    add_metadata(writer, metadata_of(spec) | vocabulary)
    tensors = [(name, shape, types.get(name, GgmlType.F32)) for name, shape in expected_tensors(spec).items()]
    for name, shape, kind in tensors:
        stored = gguf.quant_shape_to_byte_shape(shape, kind)
        if kind == GgmlType.F32:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), math.prod(stored))
        else:
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape, kind in tensors:
        writer.write_tensor_data(weights(rng, name, shape, kind))
    writer.close()


def weights(rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: GgmlType) -> NDArray[Any]:
    """A tensor in its stored form. Norms are ones; other weights are random and small."""
    if kind == GgmlType.F32:
        return np.ones(shape, np.float32) if "norm" in name else rng.normal(0, 0.02, shape).astype(np.float32)
    num_rows = math.prod(shape[:-1])
    drawn = random_blocks(rng, kind, min(num_rows, _DRAWN_ROWS), shape[-1], scale=_SCALES[kind])
    return np.resize(drawn, gguf.quant_shape_to_byte_shape(shape, kind))


if __name__ == "__main__":
    main()
