"""Write a GGUF file of a model's shape with random weights, for speed measurements. Its text means nothing.

python tools/synthetic_model.py FILE [--shape v2-lite] [--layers 27] [--experts Q2_K] [--hollow] [--vocabulary]
    [--seed 0]

Types are those of a Q4_K_M file, except for routed experts with --experts. The smallest models have one layer of
experts in addition to the dense ones. Without --vocabulary, prompts and replies are token ids. llama-server needs a
vocabulary; this one has single bytes and words such as " word7", and for some shapes the tokens of their chat template,
which is in the file.

--hollow makes most of the file a hole, which reads as zeros and takes no disk: a whole DeepSeek-R1 with Q2_K experts is
225 GB long and takes 2.4 GB on disk. Float32 tensors (routers, so tokens choose different experts), the embedding, the
output and the first two layers are written.
"""

from __future__ import annotations

import argparse
import math
from os import SEEK_CUR
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast.families.registry import RELEASES, source_of
from ballast.model.spec import ModelSpec
from ballast.tiny.quant_mix import fitting_type
from ballast.weights.gguf import block_of
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import add_metadata, common_types, metadata_of, shapes_of
from devkit.models.random_blocks import QUANTIZED, random_blocks
from devkit.models.specs.deepseek import R1_SPEC, V2_LITE_SPEC, V32_671B_SPEC
from devkit.models.specs.qwen3 import QWEN3_30B_SPEC
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

SHAPES = {"v2-lite": V2_LITE, "r1": R1_SPEC, "v3.2": V32_671B_SPEC, "qwen3-30b": QWEN3_30B_SPEC}

CHATS = {"qwen3next": "qwen3-coder-next", "qwen35moe": "qwen3.5"}
"""The releases whose templates are in files with a vocabulary, by architecture."""

_DRAWN_ROWS = 1 << 10
"""Number of random weights per tensor. They are repeated: drawing gigabytes takes minutes, and the speed is the
same."""

_SCALES = {GgmlType.Q4_K: 1e-4, GgmlType.Q6_K: 1e-5, GgmlType.Q8_0: 3e-4}
"""Scales of blocks that give weights of about 0.02. Weights of other types have the size that `random_blocks` gives."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="v2-lite", help="default: %(default)s")
    parser.add_argument(
        "--layers",
        type=int,
        help="number of layers, to make the model smaller; V2-Lite's first is dense, R1's and V3.2's first three",
    )
    parser.add_argument(
        "--experts",
        choices=[kind.name for kind in QUANTIZED],
        help="type of routed experts; if rows are not whole blocks of it, llama.cpp's fallback type",
    )
    parser.add_argument("--hollow", action="store_true", help="make most of the file a hole")
    parser.add_argument("--vocabulary", action="store_true", help="add a generated vocabulary")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    num_layers = shape.num_layers if options.layers is None else options.layers
    fewest = shape.routed_layers[0] + 1
    if not fewest <= num_layers <= shape.num_layers:
        parser.error(f"--layers={num_layers}: {fewest} to {shape.num_layers}")
    if not options.file.resolve().parent.is_dir():
        parser.error(f"{options.file}: there is no folder {options.file.parent}")
    experts = None if options.experts is None else GgmlType[options.experts]
    spec = changed(shape, num_layers=num_layers)
    write_random_model(options.file, spec, options.seed, experts, options.hollow, options.vocabulary)


def write_random_model(
    file: Path,
    spec: ModelSpec,
    seed: int,
    experts: GgmlType | None = None,
    is_hollow: bool = False,
    has_vocabulary: bool = False,
) -> None:
    """Writes `spec` tensor by tensor, so that the weights need not fit into memory. `experts` is the routed experts'
    type. A hollow file has holes for most tensors."""
    rng, types = np.random.default_rng(seed), common_types(spec)
    if experts is not None:
        shapes = shapes_of(spec)
        types |= {name: fitting_type(experts, shapes[name][-1]) for name in types if "_exps." in name}
    writer = gguf.GGUFWriter(file, spec.architecture.name)
    vocabulary = (
        made_up_vocabulary(spec.vocab_size, spec.architecture.name)
        if has_vocabulary
        else {"tokenizer.ggml.model": "none"}
    )
    sizes = {f"{spec.architecture.name}.vocab_size": spec.vocab_size, "general.file_type": 15}
    add_metadata(writer, metadata_of(spec) | vocabulary | sizes)
    tensors = [(name, shape, types.get(name, GgmlType.F32)) for name, shape in shapes_of(spec).items()]
    for name, shape, kind in tensors:
        stored = gguf.quant_shape_to_byte_shape(shape, kind)
        if kind == GgmlType.F32:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), math.prod(stored))
        else:
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.flush()
    assert writer.fout is not None, "the header is written"
    [out] = writer.fout
    for name, shape, kind in tensors:
        out.seek(-out.tell() % writer.data_alignment, SEEK_CUR)
        if not is_hollow or is_always_written(name, kind):
            out.write(weights(rng, name, shape, kind).data)
        else:
            out.seek(math.prod(gguf.quant_shape_to_byte_shape(shape, kind)), SEEK_CUR)
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


def is_always_written(name: str, kind: GgmlType) -> bool:
    """Whether a hollow file contains the tensor's bytes."""
    return kind == GgmlType.F32 or block_of(name) in (None, 0, 1)


def weights(rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: GgmlType) -> NDArray[Any]:
    """A tensor in its stored form. Norms are ones; other weights are random and small."""
    if kind == GgmlType.F32:
        return np.ones(shape, np.float32) if "norm" in name else rng.normal(0, 0.02, shape).astype(np.float32)
    num_rows = math.prod(shape[:-1])
    drawn = random_blocks(rng, kind, min(num_rows, _DRAWN_ROWS), shape[-1], scale=_SCALES.get(kind, 0.002))
    return np.resize(drawn, gguf.quant_shape_to_byte_shape(shape, kind))


if __name__ == "__main__":
    main()
