"""Speed of attention on a CPU, with latents of DeepSeek's sizes (latent 512, rope 64) and with heads of 128 numbers
that share keys and values, from caches of float32 and of half precision. Prints one JSON line per case and instruction
set.

Times are those of all threads on a CPU: other load on the machine does not count. Types take turns, in alternating
order. Short contexts have the caches of several layers, one after another, because a
model reads those of its other layers, and its weights, before it reads one again.

python benchmarks/kernels/attention.py [--threads N] [--isa NAME] [--turns 7] [--cases 32/4 16]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ballast._core import kernels
from devkit.bench_record import bench_record

RANK, ROPE, HEAD, BLOCK_TOKENS = 512, 64, 128, 32
LEAST_BYTES = 256 << 20
"""Float32 caches of all layers together: more than the processor's caches."""
TYPES: dict[str, type[np.floating[Any]]] = {"fp32": np.float32, "fp16": np.float16}


class Case(NamedTuple):
    """`kv_heads`: 0 for latents. `length`: positions that the last token of each request attends to."""

    heads: int
    kv_heads: int
    requests: int
    tokens: int
    length: int

    @property
    def name(self) -> str:
        """The heads, as `--cases` names them."""
        return f"{self.heads}/{self.kv_heads}" if self.kv_heads else str(self.heads)

    @property
    def row(self) -> int:
        """Numbers of a cached token."""
        return 2 * self.kv_heads * HEAD if self.kv_heads else RANK + ROPE


CASES = [
    Case(16, 0, 1, 1, 512),
    Case(16, 0, 1, 1, 4096),
    Case(16, 0, 8, 1, 1024),
    Case(16, 0, 1, 512, 512),
    Case(16, 0, 1, 1, 32768),
    Case(16, 0, 1, 1, 131072),
    Case(128, 0, 1, 1, 4096),
    Case(128, 0, 1, 1, 32768),
    Case(32, 4, 1, 1, 512),
    Case(32, 4, 1, 1, 4096),
    Case(32, 4, 8, 1, 1024),
    Case(32, 4, 1, 512, 512),
    Case(32, 4, 1, 1, 32768),
    Case(32, 4, 1, 1, 131072),
    Case(96, 8, 1, 1, 32768),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=kernels.usable_isas())
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cases", nargs="*", default=sorted({case.name for case in CASES}))
    options = parser.parse_args()
    pool = kernels.ThreadPool(options.threads)
    for isa in [options.isa] if options.isa else kernels.usable_isas():
        for case in CASES:
            if case.name in options.cases:
                print(measured(pool, isa, case, options.threads, options.turns), flush=True)


def measured(pool: kernels.ThreadPool, isa: str, case: Case, threads: int, turns: int) -> str:
    runs = {name: layers(pool, isa, case, dtype) for name, dtype in TYPES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in TYPES}
    for turn in range(turns):
        for name in sorted(TYPES, reverse=turn % 2 == 0):
            begin = time.process_time()
            for run in runs[name]:
                run()
            seconds[name].append((time.process_time() - begin) / len(runs[name]))
    best = {name: min(each) for name, each in seconds.items()}
    return bench_record(
        "kernels/attention",
        f"{case.name} heads, {case.requests} x {case.tokens} tokens at the end of {case.length}",
        isa=isa,
        threads=threads,
        turns=turns,
        **{f"{name}_cpu_ms": round(1e3 * value, 3) for name, value in best.items()},
        ratio_of_best=round(best["fp32"] / best["fp16"], 2),
        median_ratio_of_turns=round(statistics.median(a / b for a, b in zip(*seconds.values(), strict=True)), 2),
    )


def layers(pool: kernels.ThreadPool, isa: str, case: Case, dtype: type[np.floating[Any]]) -> list[Callable[[], None]]:
    """The attention of each layer."""
    rng = np.random.default_rng(0)
    blocks_each = -(-case.length // BLOCK_TOKENS)
    num_blocks = case.requests * blocks_each
    slots = num_blocks * BLOCK_TOKENS
    query_width = HEAD if case.kv_heads else RANK + ROPE
    query = rng.standard_normal((case.requests * case.tokens, case.heads, query_width), dtype=np.float32)
    tables = (
        np.arange(case.requests + 1, dtype=np.int32) * case.tokens,
        np.tile(np.arange(case.length - case.tokens, case.length, dtype=np.int32), case.requests),
        np.arange(case.requests + 1, dtype=np.int32) * blocks_each,
        rng.permutation(num_blocks).astype(np.int32),
    )
    out = np.empty((len(query), case.heads, HEAD if case.kv_heads else RANK), np.float32)
    scale = query_width**-0.5

    def layer() -> Callable[[], None]:
        if not case.kv_heads:
            cache = rng.standard_normal((slots, RANK + ROPE), dtype=np.float32).astype(dtype)
            return lambda: kernels.mla_attention(pool, query, cache, BLOCK_TOKENS, *tables, RANK, scale, out, isa=isa)
        keys, values = (
            rng.standard_normal((slots, case.kv_heads, HEAD), dtype=np.float32).astype(dtype) for _ in range(2)
        )
        return lambda: kernels.gqa_attention(pool, query, keys, values, BLOCK_TOKENS, *tables, scale, out, isa=isa)

    return [layer() for _ in range(1 if case.tokens > 1 else max(1, LEAST_BYTES // (4 * slots * case.row)))]


if __name__ == "__main__":
    main()
