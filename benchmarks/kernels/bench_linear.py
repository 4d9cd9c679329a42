"""One linear layer in every format: bytes of weights read a second at one token, operations a second at many."""

from __future__ import annotations

import argparse

import numpy as np
from _records import emit, random_matrix, seconds_per_call, usable
from gguf import GGMLQuantizationType as T

from ballast._core import kernels

ROWS, COLS = 65536, 2048  # beyond the caches in every format


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", nargs="*")
    parser.add_argument("--format", nargs="*", default=[T(kind).name for kind in kernels.supported_types()])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 8, 128])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    pool = kernels.ThreadPool(args.threads)
    for isa in usable(args.isa):
        for name in args.format:
            weight = random_matrix(pool, T[name], ROWS, COLS, isa)
            for num_tokens in args.tokens:
                measure(pool, isa, name, weight, num_tokens)


def measure(pool: kernels.ThreadPool, isa: str, name: str, weight: kernels.Matrix, num_tokens: int) -> None:
    x = np.random.default_rng(0).standard_normal((num_tokens, COLS), dtype=np.float32)
    out = np.empty((num_tokens, ROWS), np.float32)
    elapsed = seconds_per_call(lambda: kernels.linear(pool, x, weight, out), budget_s=0.3)
    limit = kernels.measure_read_speed(pool, 1 << 28)
    emit(
        {
            "bench": "linear",
            "isa": isa,
            "threads": pool.num_threads,
            "format": name,
            "shape": f"{ROWS} x {COLS}",
            "tokens": num_tokens,
            "ms": round(elapsed * 1e3, 3),
            "gb_per_s": round(weight.nbytes / elapsed / 1e9, 1),
            "memory_gb_per_s": round(limit / 1e9, 1),
            "share": round(weight.nbytes / elapsed / limit, 3),
            "gop_per_s": round(2 * num_tokens * ROWS * COLS / elapsed / 1e9),
        }
    )


if __name__ == "__main__":
    main()
