"""Write a GGUF file of a model's shape with random weights, for speed measurements. Its text means nothing.

python tools/synthetic_model.py FILE [--shape v2-lite] [--layers 27] [--experts Q2_K] [--hollow] [--vocabulary]
    [--skew 0.2] [--seed 0]

Types are those of a Q4_K_M file, of gpt-oss as it is published, and for routed experts those of --experts. The smallest
models have a layer of experts and a layer of attention. Without --vocabulary, prompts and replies are token ids.
llama-server needs a vocabulary; this one has single bytes and words such as " word7", and for some shapes a chat
template and its tokens.

--hollow makes most of the file a hole, which reads as zeros and takes no disk: a whole DeepSeek-R1 with Q2_K experts is
225 GB long and takes 2.4 GB on disk. Float32 tensors (routers, so tokens choose different experts), the embedding, the
output and the first two layers are written. Do not decode such a file of MXFP4 with llama.cpp for a comparison: the
scale of a zero block is a denormal number, which makes its CPU kernel twenty times slower.

--skew gives the experts of each layer an order at random, and the router prefers the first: -skew · ln(rank) is added
to the bias with which it chooses, which R1, V3.2, MiniMax-M2 and others have. Other routers choose uniformly.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from os import SEEK_CUR
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from gguf import LlamaFileType
from numpy.typing import NDArray

from ballast.families.registry import RELEASES, source_of
from ballast.model.metadata.layers import ROUTER_BIASES
from ballast.model.spec import ModelSpec
from ballast.model.tensors import NGRAM_TABLE
from ballast.tiny.quant_mix import fitting_type
from ballast.weights.gguf import block_of
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import add_metadata, common_types, metadata_of, stored_shapes, types_of_tables
from devkit.models.quant_recipes import mxfp4_types, q4_k_m_types
from devkit.models.random_blocks import QUANTIZED, random_blocks
from devkit.models.specs.deepseek import R1_SPEC, V2_LITE_SPEC, V32_671B_SPEC
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC
from devkit.models.specs.glm import GLM53_FLASH_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC, GPT_OSS_120B_SPEC
from devkit.models.specs.kimi import KIMI_LINEAR_48B_SPEC
from devkit.models.specs.minimax import MINIMAX_M2_SPEC
from devkit.models.specs.qwen3 import (
    FLASH_NEXT_125B_SPEC,
    QWEN3_30B_SPEC,
    QWEN3_235B_SPEC,
    QWEN3_NEXT_80B_SPEC,
    QWEN35_35B_SPEC,
    QWEN35_122B_SPEC,
    QWEN35_397B_SPEC,
)
from devkit.models.vocabulary import byte_metadata

V2_LITE = changed(
    V2_LITE_SPEC,
    name="DeepSeek-V2-Lite's shape",
    num_layers=27,
    vocab_size=102400,
    context_length=163840,
    hidden=2048,
    dense_width=10944,
    num_heads=16,
    q_lora_rank=None,
    kv_lora_rank=512,
    nope_dim=128,
    dim=64,
    v_dim=128,
    mla_layout="split",
    num_experts=64,
    num_experts_used=6,
    width=1408,
)


class Shape(NamedTuple):
    spec: ModelSpec
    types: Callable[[ModelSpec], Mapping[str, GgmlType]] = q4_k_m_types
    file_type: LlamaFileType = LlamaFileType.MOSTLY_Q4_K_M


SHAPES = {
    # Measurements of these have `common_types`.
    "v2-lite": Shape(V2_LITE, common_types),
    "r1": Shape(R1_SPEC, common_types),
    "v3.2": Shape(V32_671B_SPEC, common_types),
    "qwen3-30b": Shape(QWEN3_30B_SPEC, common_types),
    "qwen3-235b": Shape(QWEN3_235B_SPEC),
    "qwen3-coder-next": Shape(QWEN3_NEXT_80B_SPEC),
    "qwen3.5-35b": Shape(QWEN35_35B_SPEC),
    "qwen3.5-122b": Shape(QWEN35_122B_SPEC),
    "qwen3.5-397b": Shape(QWEN35_397B_SPEC),
    "qwen3.8-flash-next": Shape(FLASH_NEXT_125B_SPEC),
    "kimi-linear": Shape(KIMI_LINEAR_48B_SPEC),
    "glm-5.3-flash": Shape(GLM53_FLASH_SPEC),
    "v4-flash": Shape(V4_FLASH_SPEC, mxfp4_types, LlamaFileType.MOSTLY_MXFP4_MOE),
    "minimax-m2": Shape(MINIMAX_M2_SPEC),
    "gpt-oss-20b": Shape(GPT_OSS_20B_SPEC, mxfp4_types, LlamaFileType.MOSTLY_MXFP4_MOE),
    "gpt-oss-120b": Shape(GPT_OSS_120B_SPEC, mxfp4_types, LlamaFileType.MOSTLY_MXFP4_MOE),
}

CHATS = {"qwen3next": "qwen3-coder-next", "qwen35moe": "qwen3.5", "qwen4exp": "qwen3.5"}
"""The releases whose templates are in files with a vocabulary, by architecture."""

_DRAWN_ROWS = 1 << 10
"""Number of random weights per tensor. They are repeated: drawing gigabytes takes minutes, and the speed is the
same."""

_PIECE_ROWS = 1 << 20
"""Rows of a table that are written together."""

_SCALES = {GgmlType.Q4_K: 1e-4, GgmlType.Q6_K: 1e-5, GgmlType.Q8_0: 3e-4}
"""Scales of blocks that give weights of about 0.02. Weights of other types have the size that `random_blocks` gives."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="v2-lite", help="default: %(default)s")
    parser.add_argument(
        "--layers",
        type=int,
        help="number of layers, to make the model smaller; V2-Lite's and Kimi Linear's first is dense, R1's and V3.2's "
        "first three; the fourth is the first with attention in Qwen3-Coder-Next, Qwen3.5 and Kimi Linear",
    )
    parser.add_argument(
        "--experts",
        choices=[kind.name for kind in QUANTIZED],
        help="type of routed experts; if rows are not whole blocks of it, llama.cpp's fallback type",
    )
    parser.add_argument("--hollow", action="store_true", help="make most of the file a hole")
    parser.add_argument("--vocabulary", action="store_true", help="add a generated vocabulary")
    parser.add_argument("--skew", type=float, default=0.0, help="how much routers prefer some experts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    whole = shape.spec
    num_layers = whole.num_layers if options.layers is None else options.layers
    fewest = max(whole.routed_layers[0], first_attention(whole)) + 1
    if not fewest <= num_layers <= whole.num_layers:
        parser.error(f"--layers={num_layers}: {fewest} to {whole.num_layers}")
    if not options.file.resolve().parent.is_dir():
        parser.error(f"{options.file}: there is no folder {options.file.parent}")
    experts = None if options.experts is None else GgmlType[options.experts]
    shape = shape._replace(spec=changed(whole, num_layers=num_layers))
    if options.skew and not any(map(is_router_bias, stored_shapes(shape.spec))):
        parser.error(f"--skew={options.skew}: routers of {options.shape} choose without a bias")
    write_random_model(options.file, shape, options.seed, experts, options.hollow, options.vocabulary, options.skew)


def first_attention(spec: ModelSpec) -> int:
    """The first layer that keeps something of every token."""
    return next(index for index, layer in enumerate(spec.layers) if layer.mixer.planes)


def write_random_model(
    file: Path,
    shape: Shape,
    seed: int,
    experts: GgmlType | None = None,
    is_hollow: bool = False,
    has_vocabulary: bool = False,
    skew: float = 0.0,
) -> None:
    """Writes a model tensor by tensor, so that the weights need not fit into memory. `experts` is the routed experts'
    type. A hollow file has holes for most tensors. `skew`: see above."""
    spec = shape.spec
    rng, types = np.random.default_rng(seed), {**types_of_tables(spec), **shape.types(spec)}
    shapes = stored_shapes(spec)
    if experts is not None:
        types |= {name: fitting_type(experts, shapes[name][-1]) for name in types if "_exps." in name}
    writer = gguf.GGUFWriter(file, spec.architecture.name)
    vocabulary = {"tokenizer.ggml.model": "none"}
    if has_vocabulary:
        vocabulary = made_up_vocabulary(spec.vocab_size, spec.architecture.name)
    sizes = {f"{spec.architecture.name}.vocab_size": spec.vocab_size, "general.file_type": int(shape.file_type)}
    add_metadata(writer, metadata_of(spec) | vocabulary | sizes)
    tensors = [(name, dims, types.get(name, GgmlType.F32)) for name, dims in shapes.items()]
    for name, dims, kind in tensors:
        stored = gguf.quant_shape_to_byte_shape(dims, kind)
        if kind == GgmlType.F32:
            writer.add_tensor_info(name, dims, np.dtype(np.float32), math.prod(stored))
        else:
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.flush()
    assert writer.fout is not None, "the header is written"
    [out] = writer.fout
    for name, dims, kind in tensors:
        out.seek(-out.tell() % writer.data_alignment, SEEK_CUR)
        if kind == GgmlType.I32:
            out.write(table_of_experts(rng, spec.routing.num_experts, dims).data)
        elif skew and is_router_bias(name):
            out.write(preferences(rng, skew, dims).data)
        elif not is_hollow or is_always_written(name, kind):
            for piece in pieces(name, dims):
                out.write(weights(rng, name, piece, kind).data)
        else:
            out.seek(math.prod(gguf.quant_shape_to_byte_shape(dims, kind)), SEEK_CUR)
    out.truncate(out.tell() + -out.tell() % writer.data_alignment)
    writer.close()


def made_up_vocabulary(size: int, architecture: str) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary of `size` tokens. llama.cpp needs a merge. Words come before bytes: random
    weights give many tokens equal logits, the lowest id wins, and servers hold incomplete characters back."""
    own: dict[str, Any] = {"merges": [(b"t", b"h")]}
    template = {}
    if architecture in CHATS:
        family, release = RELEASES[CHATS[architecture]]
        texts = (*family.vocabulary, *family.ends, *family.reply.spellings.values())
        own["user_defined"] = tuple(dict.fromkeys(texts))
        template = {"tokenizer.chat_template": source_of(release)}
    num_words = size - len(byte_metadata(**own)["tokenizer.ggml.tokens"])
    metadata = byte_metadata(num_words=num_words, **own)
    for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        entries = metadata[name]
        metadata[name] = entries[:2] + entries[-num_words:] + entries[2:-num_words]
    return metadata | template


def pieces(name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The shapes of a tensor's parts that are in memory at a time: a table may be larger than it."""
    most = _PIECE_ROWS if name == NGRAM_TABLE else shape[0]
    for begin in range(0, shape[0], most):
        yield min(most, shape[0] - begin), *shape[1:]


def is_always_written(name: str, kind: GgmlType) -> bool:
    """Whether a hollow file contains the tensor's bytes."""
    return name != NGRAM_TABLE and (kind == GgmlType.F32 or block_of(name) in (None, 0, 1))


def is_router_bias(name: str) -> bool:
    return any(name.endswith(f".{bias}") for bias in ROUTER_BIASES)


def preferences(rng: np.random.Generator, skew: float, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A layer's biases, positive: some engines take 0 for the score of an expert that cannot be chosen."""
    ranks = rng.permutation(math.prod(shape)) + 1
    return (skew * np.log(len(ranks) / ranks)).astype(np.float32).reshape(shape)


def table_of_experts(rng: np.random.Generator, num_experts: int, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Different neighbouring experts in each row, from a random one on."""
    first = rng.integers(num_experts, size=(shape[0], 1))
    return ((first + np.arange(shape[1])) % num_experts).astype(np.int32)


def weights(rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: GgmlType) -> NDArray[Any]:
    """A tensor in its stored form. Norms are ones, and rates of decay negative; other weights are random and small."""
    if name.endswith("ssm_a"):
        return -rng.uniform(0.5, 2, shape).astype(np.float32)
    if kind == GgmlType.F32:
        return np.ones(shape, np.float32) if "norm" in name else rng.normal(0, 0.02, shape).astype(np.float32)
    num_rows = math.prod(shape[:-1])
    drawn = random_blocks(rng, kind, min(num_rows, _DRAWN_ROWS), shape[-1], scale=_SCALES.get(kind, 0.002))
    return np.resize(drawn, gguf.quant_shape_to_byte_shape(shape, kind))


if __name__ == "__main__":
    main()
