"""Compare the greedy text of a small GGUF file with llama.cpp's, token by token.

    python -m tools.against_llama_cpp model.gguf --prompts 24

Ballast generates the texts in one batch. llama.cpp reads each text and reports after every token which one it would
have chosen. It reads a copy of the file with float32 weights of the same values, because with quantised weights it
would round activations to eight bits, which changes the text of a small random model. If the tokens differ, the
difference of the two logits, relative to the largest, distinguishes a near tie from an error.

llama-cpp-python 0.3.36 must be importable. It is not a dependency, and takes minutes to build (LLAMA_CPP_LIB_PATH names
the folder that cmake has built). llama.cpp does not support Kimi K2's positions, so it cannot check that model.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.metadata import read_spec
from ballast.model.tensors import check_tensors
from ballast.weights.gguf import open_gguf
from devkit.generate import generate

NEAR_TIE = 5e-3
"""Largest difference of two logits, relative to the largest of their position, that rounding explains."""

Ids = tuple[int, ...]


def main() -> int:
    """Returns 0 if every text is llama.cpp's up to near ties."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each text")
    parser.add_argument("--largest-id", type=int, default=300, help="seed of the random prompts")
    options = parser.parse_args()
    prompts = random_prompts(options.prompts, options.largest_id)
    texts = greedy_texts(options.file, prompts, options.tokens)
    with tempfile.TemporaryDirectory() as scratch:
        copy = write_floats(options.file, Path(scratch) / "floats.gguf")
        llama = open_llama(copy, max(map(len, prompts)) + options.tokens)
        num_equal, num_wrong = 0, 0
        for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            gaps = differences(llama, prompt, text)
            num_equal += not gaps
            num_wrong += any(gap > NEAR_TIE for _, gap in gaps)
            for at, gap in gaps[:1]:
                print(f"prompt {index}: token {at} of {len(text)} differs, by {gap:.1e} of the largest logit")
    print(f"{num_equal} of {len(texts)} texts are equal, {len(texts) - num_equal - num_wrong} except for near ties")
    return int(num_wrong > 0)


def random_prompts(count: int, largest_id: int) -> list[Ids]:
    """Prompts of 4 to 60 tokens. Every vocabulary has the first few hundred ids."""
    rng = random.Random(5)
    return [tuple(rng.randrange(largest_id) for _ in range(rng.randint(4, 60))) for _ in range(count)]


def greedy_texts(file: Path, prompts: list[Ids], num_tokens: int) -> list[Ids]:
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
        cpu_threads=2,
        activation_bytes=2,
    )
    core = EngineCore(load_runner(model, spec, spec.vocab_size, settings), scheduler_config(settings))
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    requests = [Request(str(index), prompt, sampling) for index, prompt in enumerate(prompts)]
    return [result.token_ids for result in generate(core, requests)]


def write_floats(file: Path, copy: Path) -> Path:
    """A copy with every matrix in float32."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(copy, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name != "general.architecture" and not field.name.startswith("GGUF."):
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


def open_llama(file: Path, num_tokens: int) -> Any:
    """llama.cpp with a float32 cache, so that the comparison does not depend on half precision."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    return llama_cpp.Llama(
        str(file),
        n_ctx=num_tokens,
        n_batch=num_tokens,
        n_threads=2,
        logits_all=True,
        flash_attn=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )


def differences(llama: Any, prompt: Ids, text: Ids) -> list[tuple[int, float]]:
    """Tokens of `text` that llama.cpp would not have chosen: their positions, and the differences relative to the
    largest logit."""
    llama.reset()
    llama.eval([*prompt, *text[:-1]])
    logits = np.array(llama.scores[len(prompt) - 1 : len(prompt) + len(text) - 1])
    taken = np.take_along_axis(logits, np.array(text)[:, None], axis=1)[:, 0]
    gaps = (logits.max(axis=1) - taken) / np.abs(logits).max(axis=1)
    return [(int(at), float(gaps[at])) for at in np.flatnonzero(gaps > 0)]


if __name__ == "__main__":
    sys.exit(main())
