"""Speed of one layer's routed experts on packed weights. Prints one JSON line per case.

Shapes: DeepSeek-V2-Lite's (Q4_K, down in Q8_0), and DeepSeek-R1's reduced to 64 experts (Q4_K; 1.6 GB packed).

Every token chooses its experts at random. Bytes count each chosen expert once per call. `share` is bytes per second
divided by the speed at which the same threads read memory, measured just before and after.

python benchmarks/kernels/packed_experts.py [--shape v2lite|r1] [--type IQ2_XXS] [--isa avx512] [--tokens 1 4 16]
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from devkit.bench_record import bench_record
from devkit.kernels.cases import matrix_of, seconds_per_call

NUM_EXPERTS = 64


@dataclass(frozen=True)
class Shape:
    num_chosen: int
    hidden: int
    width: int
    down: GgmlType
    read_bytes: int  # buffer size for the memory measurement; exceeds the last-level cache of a machine for such models


SHAPES = {"v2lite": Shape(6, 2048, 1408, GgmlType.Q8_0, 1 << 28), "r1": Shape(8, 7168, 2048, GgmlType.Q4_K, 1 << 31)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="v2lite")
    parser.add_argument(
        "--type",
        nargs="*",
        choices=GgmlType.__members__,
        help="type of all three matrices; several are measured alternately",
    )
    parser.add_argument("--isa", nargs="*", default=kernels.usable_isas()[:-1])
    parser.add_argument("--activation_bytes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 4, 8, 16, 512])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    pool = kernels.ThreadPool(args.threads)
    shape = SHAPES[args.shape]
    tall, wide = (NUM_EXPERTS * shape.width, shape.hidden), (NUM_EXPERTS * shape.hidden, shape.width)
    for isa in args.isa:
        for num_bytes in args.activation_bytes:
            for name in args.type or ["own"]:
                of_tall, of_wide = (GgmlType.Q4_K, shape.down) if name == "own" else (GgmlType[name],) * 2
                kinds = (of_tall, tall), (of_tall, tall), (of_wide, wide)
                gate, up, down = matrices = [matrix_of(kind, *size, NUM_EXPERTS) for kind, size in kinds]
                experts = kernels.Experts(gate, up, down, NUM_EXPERTS).packed(pool, isa, activation_bytes=num_bytes)
                expert_bytes = sum(matrix.nbytes for matrix in matrices) // NUM_EXPERTS
                of_types = "" if name == "own" else f"{name}, "
                for num_tokens in args.tokens:
                    case = f"{args.shape}, {of_types}{isa}, {num_bytes} bytes an activation, {num_tokens} tokens"
                    figures = measure(pool, experts, shape, expert_bytes, num_tokens)
                    print(bench_record("kernels/packed_experts", case, threads=args.threads, **figures), flush=True)


def measure(
    pool: kernels.ThreadPool, experts: kernels.Experts, shape: Shape, expert_bytes: int, num_tokens: int
) -> dict[str, float]:
    rng = np.random.default_rng(num_tokens)
    x = rng.standard_normal((num_tokens, shape.hidden), dtype=np.float32)
    weights = np.full((num_tokens, shape.num_chosen), 1 / shape.num_chosen, np.float32)
    out = np.empty_like(x)
    # Many draws, so that no call finds its experts in the caches.
    draws = [
        np.array([rng.permutation(NUM_EXPERTS)[: shape.num_chosen] for _ in range(num_tokens)], np.int32)
        for _ in range(64)
    ]
    num_calls = 0

    def call() -> None:
        nonlocal num_calls
        experts.forward(pool, x, draws[num_calls % len(draws)], weights, out)
        num_calls += 1

    before = kernels.measure_read_speed(pool, shape.read_bytes)
    seconds = seconds_per_call(call)
    memory = (before + kernels.measure_read_speed(pool, shape.read_bytes)) / 2
    speed = expert_bytes * float(np.mean([np.unique(draw).size for draw in draws])) / seconds
    return {
        "ms": round(seconds * 1e3, 3),
        "gb_per_s": round(speed / 1e9, 1),
        "memory_gb_per_s": round(memory / 1e9, 1),
        "share": round(speed / memory, 3),
        "gop_per_s": round(6 * num_tokens * shape.num_chosen * shape.hidden * shape.width / seconds / 1e9),
    }


if __name__ == "__main__":
    main()
