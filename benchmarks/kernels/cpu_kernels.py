"""Speed of the CPU kernels at DeepSeek-V2-Lite's sizes. Prints one JSON line per case, the best of several runs.

python benchmarks/kernels/cpu_kernels.py [--threads N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType

from ballast._core import kernels
from devkit.bench_record import bench_record
from devkit.models.random_blocks import random_blocks
from devkit.timing import best_of

RNG = np.random.default_rng(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    pool = kernels.ThreadPool(parser.parse_args().threads)
    for cases in (linear_cases, expert_cases):
        for case, operations, weights, run in cases(pool):
            seconds = best_of(run, times=5)
            figures = {"seconds": round(seconds, 6), "gflops": round(operations / seconds / 1e9, 2)}
            if weights:
                figures["gweights_per_s"] = round(weights / seconds / 1e9, 2)
            print(bench_record("kernels/cpu_kernels", case, threads=pool.num_threads, **figures), flush=True)


Case = tuple[str, int, int, Callable[[], None]]  # name, operations, weight bytes read, function to time


def random_matrix(ggml_type: int, rows: int, cols: int) -> kernels.Matrix:
    return kernels.Matrix(random_blocks(RNG, ggml_type, rows, cols), ggml_type, rows, cols)


def linear_cases(pool: kernels.ThreadPool) -> Iterator[Case]:
    rows, cols = 4096, 2048
    for known in kernels.formats():
        weight = random_matrix(known.ggml_type, rows, cols)
        for num_tokens in (1, 32):
            x = RNG.standard_normal((num_tokens, cols), dtype=np.float32)
            out = np.empty((num_tokens, rows), np.float32)
            case = f"linear {known.name} {rows} x {cols}, {num_tokens} tokens"
            yield (
                case,
                2 * num_tokens * rows * cols,
                rows * cols,
                partial(kernels.linear, pool, x, weight, out),
            )


def expert_cases(pool: kernels.ThreadPool) -> Iterator[Case]:
    num_experts, hidden, width, num_chosen = 64, 2048, 1408, 6
    gate, up = (random_matrix(GGMLQuantizationType.Q4_K, num_experts * width, hidden) for _ in ("gate", "up"))
    down = random_matrix(GGMLQuantizationType.Q8_0, num_experts * hidden, width)
    experts = kernels.Experts(gate, up, down, num_experts)
    for num_tokens in (1, 2, 4, 16, 64):
        x = RNG.standard_normal((num_tokens, hidden), dtype=np.float32)
        ids = np.array([RNG.permutation(num_experts)[:num_chosen] for _ in range(num_tokens)], np.int32)
        weights = np.full(ids.shape, 1 / num_chosen, np.float32)
        out = np.empty_like(x)
        yield (
            f"experts Q4_K, down Q8_0, 6 of 64, {hidden} x {width}, {num_tokens} tokens",
            6 * ids.size * hidden * width,
            3 * np.unique(ids).size * hidden * width,
            partial(experts.forward, pool, x, ids, weights, out),
        )


if __name__ == "__main__":
    main()
