"""Speed of latent attention at DeepSeek's sizes (latent 512, rope 64). Prints one JSON line per case and instruction
set.

python benchmarks/kernels/attention.py [--threads N] [--isa NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from ballast._core import kernels
from devkit.bench_record import bench_record
from devkit.timing import best_of

RANK, ROPE, BLOCK_TOKENS = 512, 64, 32
CASES = [  # heads, requests, tokens of each, positions that each one attends to
    (16, 1, 1, 64),
    (16, 1, 1, 512),
    (16, 1, 1, 4096),
    (16, 8, 1, 1024),
    (16, 1, 64, 1024),
    (16, 1, 512, 512),
    (128, 1, 1, 4096),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=kernels.usable_isas())
    options = parser.parse_args()
    pool = kernels.ThreadPool(options.threads)
    for isa in [options.isa] if options.isa else kernels.usable_isas():
        for heads, num_requests, num_tokens, length in CASES:
            seconds = best_of(attention(pool, isa, heads, num_requests, num_tokens, length))
            seen = num_requests * sum(range(length - num_tokens + 1, length + 1))
            figures = {
                "seconds": round(seconds, 6),
                "gflops": round(2 * heads * seen * (2 * RANK + ROPE) / seconds / 1e9, 1),
                "cache_gb_per_s": round(num_requests * length * (RANK + ROPE) * 4 / seconds / 1e9, 1),
            }
            case = f"{heads} heads, {num_requests} x {num_tokens} tokens at the end of {length}"
            print(bench_record("kernels/attention", case, isa=isa, threads=options.threads, **figures), flush=True)


def attention(
    pool: kernels.ThreadPool, isa: str, heads: int, num_requests: int, num_tokens: int, length: int
) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    num_blocks = -(-length // BLOCK_TOKENS)
    query = rng.standard_normal((num_requests * num_tokens, heads, RANK + ROPE), dtype=np.float32)
    cache = rng.standard_normal((num_requests * num_blocks * BLOCK_TOKENS, RANK + ROPE), dtype=np.float32)
    tables = (
        np.arange(num_requests + 1, dtype=np.int32) * num_tokens,
        np.tile(np.arange(length - num_tokens, length, dtype=np.int32), num_requests),
        np.arange(num_requests + 1, dtype=np.int32) * num_blocks,
        rng.permutation(num_requests * num_blocks).astype(np.int32),
    )
    out = np.empty((len(query), heads, RANK), np.float32)
    scale = (RANK + ROPE) ** -0.5
    return lambda: kernels.mla_attention(pool, query, cache, BLOCK_TOKENS, *tables, RANK, scale, out, isa=isa)


if __name__ == "__main__":
    main()
