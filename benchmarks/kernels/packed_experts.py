"""Routed experts of one layer in DeepSeek-V2-Lite's shape, on packed weights: one JSON line a case.

Every token picks its experts at random; bytes count each picked expert once a call. `share` is those bytes a second
over the speed at which the same threads read memory, measured just before and after.

python benchmarks/kernels/packed_experts.py [--isa avx512] [--tokens 1 4 8 16 512] [--threads N]
"""

from __future__ import annotations

import argparse

import numpy as np
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.testing.bench_record import bench_record
from ballast.testing.kernel_cases import matrix_of, seconds_per_call

NUM_EXPERTS, NUM_CHOSEN, HIDDEN, WIDTH = 64, 6, 2048, 1408


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", nargs="*", default=kernels.usable_isas()[:-1])
    parser.add_argument("--activation_bytes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 4, 8, 16, 512])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    pool = kernels.ThreadPool(args.threads)
    for isa in args.isa:
        for num_bytes in args.activation_bytes:
            gate, up = (matrix_of(GgmlType.Q4_K, NUM_EXPERTS * WIDTH, HIDDEN) for _ in ("gate", "up"))
            down = matrix_of(GgmlType.Q8_0, NUM_EXPERTS * HIDDEN, WIDTH)
            experts = kernels.Experts(gate, up, down, NUM_EXPERTS).packed(pool, isa, activation_bytes=num_bytes)
            expert_bytes = (gate.nbytes + up.nbytes + down.nbytes) // NUM_EXPERTS
            for num_tokens in args.tokens:
                case = f"{isa}, {num_bytes} bytes an activation, {num_tokens} tokens"
                figures = measure(pool, experts, expert_bytes, num_tokens)
                print(bench_record("kernels/packed_experts", case, threads=args.threads, **figures), flush=True)


def measure(pool: kernels.ThreadPool, experts: kernels.Experts, expert_bytes: int, num_tokens: int) -> dict[str, float]:
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

    before = kernels.measure_read_speed(pool, 1 << 28)
    seconds = seconds_per_call(call)
    memory = (before + kernels.measure_read_speed(pool, 1 << 28)) / 2
    speed = expert_bytes * float(np.mean([np.unique(draw).size for draw in draws])) / seconds
    return {
        "ms": round(seconds * 1e3, 3),
        "gb_per_s": round(speed / 1e9, 1),
        "memory_gb_per_s": round(memory / 1e9, 1),
        "share": round(speed / memory, 3),
        "gop_per_s": round(6 * num_tokens * NUM_CHOSEN * HIDDEN * WIDTH / seconds / 1e9),
    }


if __name__ == "__main__":
    main()
