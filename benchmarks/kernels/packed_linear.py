"""Speed of one linear layer on packed weights that exceed the caches, in every format. Prints one JSON line per case.

`share` is weight bytes per second divided by the speed at which the same threads read memory, measured just after.

python benchmarks/kernels/packed_linear.py [--isa avx512] [--format Q4_K] [--tokens 1 8 128] [--threads N]
"""

from __future__ import annotations

import argparse
import os

import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from devkit.bench_record import bench_record
from devkit.kernels.cases import matrix_of, seconds_per_call

ROWS, COLS = 65536, 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", nargs="*", default=kernels.usable_isas()[:-1])
    parser.add_argument("--activation_bytes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--format", nargs="*", default=[known.name for known in kernels.formats()])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 8, 128])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    pool = kernels.ThreadPool(args.threads)
    for isa in args.isa:
        for name in args.format:
            is_float = name in ("F32", "F16", "BF16")
            for num_bytes in args.activation_bytes[: 1 if is_float else None]:
                weight = kernels.pack(pool, matrix_of(GgmlType[name], ROWS, COLS), isa, activation_bytes=num_bytes)
                rounding = "float activations" if is_float else f"{num_bytes} bytes an activation"
                for num_tokens in args.tokens:
                    case = f"{isa}, {name} {ROWS} x {COLS}, {rounding}, {num_tokens} tokens"
                    figures = measure(pool, weight, num_tokens)
                    print(bench_record("kernels/packed_linear", case, threads=args.threads, **figures), flush=True)


def measure(pool: kernels.ThreadPool, weight: kernels.Matrix, num_tokens: int) -> dict[str, float]:
    x = np.random.default_rng(0).standard_normal((num_tokens, COLS), dtype=np.float32)
    out = np.empty((num_tokens, ROWS), np.float32)
    seconds = seconds_per_call(lambda: kernels.linear(pool, x, weight, out), budget_s=0.2)
    memory = kernels.measure_read_speed(pool, 1 << 27)
    return {
        "ms": round(seconds * 1e3, 3),
        "gb_per_s": round(weight.nbytes / seconds / 1e9, 1),
        "memory_gb_per_s": round(memory / 1e9, 1),
        "share": round(weight.nbytes / seconds / memory, 3),
        "gop_per_s": round(2 * num_tokens * ROWS * COLS / seconds / 1e9),
    }


if __name__ == "__main__":
    main()
