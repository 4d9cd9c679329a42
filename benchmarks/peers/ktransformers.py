"""Compare the routed experts of one layer with kt-kernel's, alternately, on a CPU: DeepSeek-R1's shape reduced to 64
experts, in Q4_K.

python benchmarks/peers/ktransformers.py KT_PYTHON [--methods gguf int4 int8] [--tokens 1 4 16 512] [--rounds 3]
    [--threads N]

KT_PYTHON is the interpreter of an environment that holds kt-kernel:

python3.11 -m venv kt && kt/bin/pip install kt-kernel==0.7.2

Methods are those of kt-kernel: `gguf` computes with the file's blocks, as Ballast does; `int4` and `int8` convert bf16
weights when they load, so that their results differ from those of a GGUF file. Every token chooses its experts at
random. Ballast computes with activations of one byte, its default for Q4_K, as kt-kernel does for `gguf`.

Use fewer threads than the machine has cores: a further thread of kt-kernel waits actively, and takes the time of a core
from its own workers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from devkit.bench_record import bench_record
from devkit.kernels.cases import matrix_of, seconds_per_call
from devkit.peer_build import output_of

LAYER = Path(__file__).with_name("ktransformers_layer.py")
NUM_EXPERTS, CHOSEN, HIDDEN, WIDTH = 64, 8, 7168, 2048
DRAWS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kt_python", type=Path)
    parser.add_argument("--methods", nargs="*", default=["gguf", "int4", "int8"])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 4, 16, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    for method in options.methods:
        ours: dict[int, list[float]] = defaultdict(list)
        theirs: dict[int, list[float]] = defaultdict(list)
        version = ""
        for number in range(options.rounds):
            for tokens, ms in measure(options.threads, options.tokens).items():
                ours[tokens].append(round(ms, 2))
            version, measured = measure_kt_kernel(options.kt_python, method, options.threads, options.tokens)
            for tokens, ms in measured.items():
                theirs[tokens].append(round(ms, 2))
            print(f"{method}: round {number + 1} of {options.rounds} is done", file=sys.stderr)
        for tokens in options.tokens:
            figures = {
                "ours_ms": ours[tokens],
                "theirs_ms": theirs[tokens],
                "ratio_of_medians": round(median(theirs[tokens]) / median(ours[tokens]), 2),
                "peer": f"kt-kernel {version}",
                "threads": options.threads,
            }
            print(bench_record("peers/ktransformers", f"R1's shape, {method}: {tokens} tokens", **figures), flush=True)


def measure_kt_kernel(
    python: Path, method: str, threads: int, numbers_of_tokens: list[int]
) -> tuple[str, dict[int, float]]:
    """The version of kt-kernel, and its milliseconds per call, by number of tokens."""
    words = (threads, NUM_EXPERTS, CHOSEN, HIDDEN, WIDTH, int(GgmlType.Q4_K), *numbers_of_tokens)
    lines = output_of([python, LAYER, method, *words]).splitlines()
    answer = json.loads(next(line for line in lines if line.startswith("{")))
    return answer["version"], {int(tokens): ms for tokens, ms in answer["ms"].items()}


def measure(threads: int, numbers_of_tokens: list[int]) -> dict[int, float]:
    """Ballast's milliseconds per call, by number of tokens."""
    pool = kernels.ThreadPool(threads)
    tall, wide = (NUM_EXPERTS * WIDTH, HIDDEN), (NUM_EXPERTS * HIDDEN, WIDTH)
    gate, up, down = (matrix_of(GgmlType.Q4_K, *size, NUM_EXPERTS) for size in (tall, tall, wide))
    experts = kernels.Experts(gate, up, down, NUM_EXPERTS).packed(pool, kernels.usable_isas()[0], activation_bytes=1)
    return {tokens: _milliseconds(pool, experts, tokens) for tokens in numbers_of_tokens}


def _milliseconds(pool: kernels.ThreadPool, experts: kernels.Experts, tokens: int) -> float:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, HIDDEN), dtype=np.float32)
    weights = np.full((tokens, CHOSEN), 1 / CHOSEN, np.float32)
    out = np.empty_like(x)
    draws = [np.array([rng.permutation(NUM_EXPERTS)[:CHOSEN] for _ in range(tokens)], np.int32) for _ in range(DRAWS)]
    calls = 0

    def call() -> None:
        nonlocal calls
        experts.forward(pool, x, draws[calls % DRAWS], weights, out)
        calls += 1

    return seconds_per_call(call) * 1e3


if __name__ == "__main__":
    main()
