"""Routed experts of one layer in DeepSeek-V2-Lite's shape: bytes of weights read a second and operations a second.

Every token picks its experts at random; bytes count each picked expert once a call. `share` is those bytes a second
over the speed at which the same threads read memory, measured beside the case.
"""

from __future__ import annotations

import argparse

import numpy as np
from _records import emit, random_matrix, seconds_per_call, usable
from gguf import GGMLQuantizationType as T

from ballast._core import kernels

NUM_EXPERTS, NUM_CHOSEN, HIDDEN, WIDTH = 64, 6, 2048, 1408


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", nargs="*")
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 4, 8, 16, 512])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    pool = kernels.ThreadPool(args.threads)
    for isa in usable(args.isa):
        gate, up = (random_matrix(pool, T.Q4_K, NUM_EXPERTS * WIDTH, HIDDEN, isa, NUM_EXPERTS) for _ in range(2))
        down = random_matrix(pool, T.Q8_0, NUM_EXPERTS * HIDDEN, WIDTH, isa, NUM_EXPERTS)
        experts = kernels.Experts(gate, up, down, NUM_EXPERTS)
        expert_bytes = (gate.nbytes + up.nbytes + down.nbytes) // NUM_EXPERTS
        for num_tokens in args.tokens:
            measure(pool, isa, experts, expert_bytes, num_tokens)


def measure(pool: kernels.ThreadPool, isa: str, experts: kernels.Experts, expert_bytes: int, num_tokens: int) -> None:
    rng = np.random.default_rng(num_tokens)
    x = rng.standard_normal((num_tokens, HIDDEN), dtype=np.float32)
    weights = np.full((num_tokens, NUM_CHOSEN), 1 / NUM_CHOSEN, np.float32)
    out = np.empty_like(x)
    # Many draws, so that no call finds its experts in the caches.
    draws = [
        np.array([rng.permutation(NUM_EXPERTS)[:NUM_CHOSEN] for _ in range(num_tokens)], np.int32) for _ in range(64)
    ]
    num_calls = 0

    def call() -> None:
        nonlocal num_calls
        experts.forward(pool, x, draws[num_calls % len(draws)], weights, out)
        num_calls += 1

    before = kernels.measure_read_speed(pool, 1 << 29)
    elapsed = seconds_per_call(call)
    limit = max(before, kernels.measure_read_speed(pool, 1 << 29))
    num_bytes = expert_bytes * float(np.mean([np.unique(draw).size for draw in draws]))
    emit(
        {
            "bench": "experts",
            "isa": isa,
            "threads": pool.num_threads,
            "format": "Q4_K, Q4_K, Q8_0",
            "shape": f"{NUM_CHOSEN} of {NUM_EXPERTS}, {HIDDEN} x {WIDTH}",
            "tokens": num_tokens,
            "ms": round(elapsed * 1e3, 3),
            "gb_per_s": round(num_bytes / elapsed / 1e9, 1),
            "memory_gb_per_s": round(limit / 1e9, 1),
            "share": round(num_bytes / elapsed / limit, 3),
            "gop_per_s": round(6 * num_tokens * NUM_CHOSEN * HIDDEN * WIDTH / elapsed / 1e9),
        }
    )


if __name__ == "__main__":
    main()
