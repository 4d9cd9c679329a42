"""Compare greedy text with llama.cpp's on a CPU, token by token, for small random models of each architecture.

    python benchmarks/peers/greedy_text.py LLAMA_BUILD_BIN [--archs qwen3next gptoss ...] [--quant q8_0] [--prompts 24]
        [--tokens 32] [--largest-id 300] [--version TEXT] [--threads 1]

Ballast generates the texts in one batch. llama.cpp reads each prompt, then the text token by token, and shows which
token it would have chosen at each position. Both read a file with float32 weights. If the tokens differ, the difference
of the two logits, relative to the largest, distinguishes a near tie from an error.

Ballast also generates texts from a file with the same weights before they were written as float32, of type `--quant`.
There it rounds activations to sixteen bits, which may change the choice of an expert or of a position. llama.cpp would
round them to eight bits, which changes the text of a small random model. If a text then differs by more than a near
tie, the comparison is repeated with a model of the same shape whose tokens take all experts and all positions. If those
texts are equal, only choices explain the difference.

LLAMA_BUILD_BIN is the folder of libllama.so in a build (`ninja -C build llama`); `llama_cpp.py --help` says where to
get the source, which must still be there: the program next to this one is compiled against it. It prints one JSON line
per architecture, and ends with 1 if a text from float32 weights or one without choices differs by more than near ties.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.metadata import read_spec
from ballast.model.tensors import check_tensors
from ballast.tiny import TinyShape, TinyYarn, write_tiny_model
from ballast.tiny.presets import PRESETS
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record
from devkit.generate import generate
from devkit.models.gguf_files import stored_shapes
from devkit.peer_build import output_of, source_of_build

NEAR_TIE = 5e-3
"""Largest difference of two logits, relative to the largest of their position, that rounding explains."""

MOST_POSITIONS = 4096
"""More than the tokens of any prompt and text."""

Ids = tuple[int, ...]


def yarn_of(arch: str) -> TinyYarn:
    """The preset's."""
    yarn = PRESETS[arch].yarn
    assert yarn is not None, arch
    return yarn


TIMEOUT_S = 900.0
ADJUSTED: dict[str, dict[str, Any]] = {
    "gptoss": {"rope_theta": 40555.0},
    "laguna": {"yarn": replace(yarn_of("laguna"), attention_factor=None)},
    "k2": {"yarn": replace(yarn_of("k2"), beta_fast=32.0)},
    "v2": {"num_groups": 1, "num_groups_used": 1},
    "v2lite": {"num_layers": 27},
}
"""Changes to presets that llama.cpp computes differently from the models' authors. It rounds the ends of gpt-oss's YaRN
ramp, which with this theta are 0 and 6.9999. It reads neither Laguna's factor of cosines and sines nor K2's
`beta_fast`. It gives V2's groups of experts the score of V3's. It knows V2-Lite by the number of layers."""
ADDED: dict[str, dict[str, float]] = {
    "mistral4": {"mistral4.attention.temperature_scale": 0.1, "mistral4.attention.temperature_length": 16}
}
"""Keys for llama.cpp, which its conversion leaves out: without them it does not scale queries."""
PROGRAM = Path(__file__).with_name("llama_logits.cpp")


def main() -> int:
    """Returns 0 if every text from float32 weights, and every one without choices, is llama.cpp's up to near ties."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_build_bin", type=Path)
    parser.add_argument("--archs", nargs="+", choices=PRESETS, default=[*PRESETS], metavar="ARCH")
    parser.add_argument("--quant", default="q8_0", help="type of the matrices in the other file")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each text")
    parser.add_argument("--largest-id", type=int, default=300, help="prompts have tokens below this number")
    parser.add_argument("--version", default="", help="llama.cpp's version, for the record")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    num_wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        program = compiled(options.llama_build_bin, Path(scratch))
        for arch in options.archs:
            shape = replace(PRESETS[arch], **ADJUSTED.get(arch, {}))
            file, copy = written(arch, shape, options.quant, Path(scratch))
            floats, quantised = (compare(options, f"{arch}, {each.name}", program, each, copy) for each in (copy, file))
            num_wrong += floats.num_wrong
            whole = None
            if quantised.num_wrong:
                file, copy = written(arch, without_choices(shape), options.quant, Path(scratch))
                whole = compare(options, f"{arch}, {file.name} without choices", program, file, copy)
                num_wrong += whole.num_wrong
            print(record(options, arch, floats, quantised, whole), flush=True)
    return int(num_wrong > 0)


def written(arch: str, shape: TinyShape, quant: str, scratch: Path) -> tuple[Path, Path]:
    """A file with a random model of that shape, and its copy with float32 weights for llama.cpp."""
    file = write_tiny_model(scratch / arch, quant=quant, overrides=shape).gguf
    return file, write_floats(file, scratch / "floats.gguf", ADDED.get(arch, {}))


def without_choices(shape: TinyShape) -> TinyShape:
    """The shape with all experts and all positions of the longest text."""
    index = shape.index and replace(shape.index, top_k=MOST_POSITIONS)
    return replace(shape, num_experts_used=shape.num_experts, num_groups=1, num_groups_used=1, index=index)


@dataclass(frozen=True, slots=True)
class Compared:
    """Texts of one model. Differences of logits are relative to the largest of their position."""

    num_texts: int
    num_equal: int
    near_ties: list[float]
    """The difference at the first token that is another, for each text whose differences are all small."""
    num_wrong: int
    """Texts with a large difference."""
    margin: float
    """Median distance between llama.cpp's best token and the next."""


def record(
    options: argparse.Namespace, arch: str, floats: Compared, quantised: Compared, whole: Compared | None
) -> str:
    """`whole`: the quantised texts without choices, if they were compared."""
    command = f"greedy_text.py BUILD/bin --archs {arch} --quant {options.quant} --prompts {options.prompts}"
    return bench_record(
        "peers/greedy_text",
        arch,
        texts=floats.num_texts,
        tokens=options.tokens,
        equal=floats.num_equal,
        near_ties=[float(f"{gap:.1e}") for gap in floats.near_ties],
        wrong=floats.num_wrong,
        margin_p50=round(floats.margin, 4),
        quant=options.quant,
        quantised_equal=quantised.num_equal,
        quantised_near_ties=[float(f"{gap:.1e}") for gap in quantised.near_ties],
        quantised_wrong=quantised.num_wrong,
        **({"unchosen_equal": whole.num_equal, "unchosen_wrong": whole.num_wrong} if whole else {}),
        adjusted=sorted((*ADJUSTED.get(arch, ()), *ADDED.get(arch, ()))),
        version=options.version or "unknown",
        command=f"{command} --tokens {options.tokens} --largest-id {options.largest_id}",
    )


def compare(options: argparse.Namespace, name: str, program: Path, ours: Path, theirs: Path) -> Compared:
    """The texts of two files with the same weights."""
    prompts = random_prompts(options.prompts, options.largest_id)
    texts = greedy_texts(ours, prompts, options.tokens, options.threads)
    logits = llama_logits(program, theirs, prompts, texts, options.threads)
    gaps = [differences(*each) for each in zip(logits, texts, strict=True)]
    for index, each in enumerate(gaps):
        for at, gap in each[:1]:
            print(f"{name}, prompt {index}: token {at} differs, by {gap:.1e} of the largest logit", file=sys.stderr)
    is_wrong = [any(gap > NEAR_TIE for _, gap in each) for each in gaps]
    best = np.sort(logits, axis=-1)[..., -2:]
    return Compared(
        len(texts),
        sum(not each for each in gaps),
        [each[0][1] for each, wrong in zip(gaps, is_wrong, strict=True) if each and not wrong],
        sum(is_wrong),
        float(np.median((best[..., 1] - best[..., 0]) / np.abs(logits).max(-1))),
    )


def compiled(build_bin: Path, scratch: Path) -> Path:
    """The program that computes logits with the library in that folder."""
    source = source_of_build(build_bin)
    program = scratch / "llama_logits"
    libraries = [build_bin / f"lib{name}.so" for name in ("llama", "ggml", "ggml-base")]
    folders = [f"-I{source / folder}" for folder in ("include", "ggml/include")]
    rpath = f"-Wl,-rpath,{build_bin.resolve()}"
    output_of([os.environ.get("CXX", "c++"), "-O1", "-std=c++17", PROGRAM, *folders, *libraries, rpath, "-o", program])
    return program


def random_prompts(count: int, largest_id: int) -> list[Ids]:
    """Prompts of 4 to 200 tokens. Every vocabulary has the first few hundred ids."""
    rng = random.Random(5)
    return [tuple(rng.randrange(largest_id) for _ in range(rng.randint(4, 200))) for _ in range(count)]


def greedy_texts(file: Path, prompts: list[Ids], num_tokens: int, num_threads: int) -> list[Ids]:
    """Ballast's texts, `num_tokens` each."""
    model = open_gguf(file)
    spec = read_spec(model)
    check_tensors(model, spec)
    settings = EngineSettings(
        cache_lens=8192,
        max_batch_size=8,
        max_new_tokens=num_tokens,
        chunk_size=128,
        prefill_chunk_size=128,
        max_queue=len(prompts),
        block_tokens=16,
        cpu_threads=num_threads,
        activation_bytes=2,
    )
    core = EngineCore(load_runner(model, spec, spec.vocab_size, settings), scheduler_config(settings))
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    requests = [Request(str(index), prompt, sampling) for index, prompt in enumerate(prompts)]
    return [result.token_ids for result in generate(core, requests)]


def write_floats(file: Path, copy: Path, added: Mapping[str, float] | None = None) -> Path:
    """A copy with the weights in float32, the dimensions that current conversions write, and the added keys. Tables of
    whole numbers keep their type."""
    shapes = stored_shapes(read_spec(open_gguf(file)))
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(copy, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name != "general.architecture" and not field.name.startswith("GGUF."):
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of)
    for key, value in (added or {}).items():
        if isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    for tensor in reader.tensors:
        if tensor.tensor_type == GgmlType.I32:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape(shapes.get(tensor.name, values.shape))
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


def llama_logits(
    program: Path, file: Path, prompts: list[Ids], texts: list[Ids], num_threads: int
) -> NDArray[np.float32]:
    """llama.cpp's logits before each token of the texts: [texts, tokens, vocabulary]."""
    lines = [
        f"{len(prompt)} {' '.join(map(str, prompt + text))}\n" for prompt, text in zip(prompts, texts, strict=True)
    ]
    done = subprocess.run(
        [program, file, str(num_threads)], input="".join(lines).encode(), capture_output=True, timeout=TIMEOUT_S
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace")[-2000:]
        sys.exit(f"{program.name} ended with {done.returncode}:\n{reason}")
    return np.frombuffer(done.stdout, np.float32).reshape(len(texts), len(texts[0]), -1)


def differences(logits: NDArray[np.float32], text: Ids) -> list[tuple[int, float]]:
    """Tokens of `text` that are not the best ones of `logits` [tokens, vocabulary]: their positions, and how much less
    they have, relative to the largest logit of the position."""
    taken = np.take_along_axis(logits, np.array(text)[:, None], axis=1)[:, 0]
    gaps = (logits.max(axis=1) - taken) / np.abs(logits).max(axis=1)
    return [(int(at), float(gaps[at])) for at in np.flatnonzero(gaps > 0)]


if __name__ == "__main__":
    sys.exit(main())
