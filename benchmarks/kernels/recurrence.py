"""Speed of the gated delta rule and of short convolutions at the sizes of Qwen3-Next-80B and Kimi-Linear-48B. Prints
one JSON line per case and instruction set.

python benchmarks/kernels/recurrence.py [--threads N] [--isa NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from ballast._core import kernels
from ballast.model.batch import States
from devkit.bench_record import bench_record
from devkit.timing import best_of

WIDTH, TAPS = 128, 4
MODELS = {"80B": (32, 16, False), "Kimi-Linear": (32, 32, True)}
"""Heads of values and of keys, and whether each row of a state has a decay."""
CASES = [(1, 1), (8, 1), (1, 64), (1, 512)]
"""Requests, tokens of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=kernels.usable_isas())
    options = parser.parse_args()
    pool = kernels.ThreadPool(options.threads)
    for isa in [options.isa] if options.isa else kernels.usable_isas():
        for model, (heads, key_heads, decays_rows) in MODELS.items():
            for num_requests, num_tokens in CASES:
                made = {
                    "delta rule": delta_rule(pool, isa, heads, key_heads, decays_rows, num_requests, num_tokens),
                    "convolution": short_conv(pool, isa, (heads + 2 * key_heads) * WIDTH, num_requests, num_tokens),
                }
                for name, run in made.items():
                    seconds = best_of(run)
                    figures = {
                        "seconds": round(seconds, 6),
                        "us_per_token": round(1e6 * seconds / num_requests / num_tokens, 1),
                    }
                    case = f"{name} of {model}, {num_requests} x {num_tokens} tokens"
                    print(bench_record("kernels/recurrence", case, isa=isa, threads=options.threads, **figures))


def delta_rule(
    pool: kernels.ThreadPool,
    isa: str,
    heads: int,
    key_heads: int,
    decays_rows: bool,
    num_requests: int,
    num_tokens: int,
) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    total = num_requests * num_tokens
    keys = rng.standard_normal((2, total, key_heads, WIDTH), np.float32) / np.float32(WIDTH)
    values = rng.standard_normal((total, heads, WIDTH), np.float32)
    decays = rng.uniform(0.8, 1.0, (total, heads, WIDTH) if decays_rows else (total, heads)).astype(np.float32)
    betas = rng.uniform(0.0, 1.0, (total, heads)).astype(np.float32)
    states, out = np.zeros((2 * num_requests + 1, heads, WIDTH, WIDTH), np.float32), np.empty_like(values)
    return lambda: kernels.delta_rule(
        pool,
        queries=keys[0],
        keys=keys[1],
        values=values,
        decays=decays,
        betas=betas,
        token_indptr=np.arange(num_requests + 1, dtype=np.int32) * num_tokens,
        slots=_slots(num_requests),
        states=states,
        out=out,
        heads_alternate=False,
        isa=isa,
    )


def short_conv(
    pool: kernels.ThreadPool, isa: str, channels: int, num_requests: int, num_tokens: int
) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_requests * num_tokens, channels), np.float32)
    weights = rng.standard_normal((TAPS, channels), np.float32)
    states, out = np.zeros((2 * num_requests + 1, TAPS - 1, channels), np.float32), np.empty_like(x)
    return lambda: kernels.short_conv(
        pool,
        x=x,
        weights=weights,
        token_indptr=np.arange(num_requests + 1, dtype=np.int32) * num_tokens,
        slots=_slots(num_requests),
        states=states,
        out=out,
        isa=isa,
    )


def _slots(num_requests: int) -> States:
    """Each request reads one slot and writes another."""
    first = np.arange(1, num_requests + 1, dtype=np.int32)
    none = np.zeros(0, np.int32)
    return first, first + num_requests, np.zeros(num_requests + 1, np.int32), none, none


if __name__ == "__main__":
    main()
