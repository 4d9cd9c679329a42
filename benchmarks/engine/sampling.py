"""Time of one step's sampling with DeepSeek V3's vocabulary: the engine's rows on a pool's threads, and the NumPy
sampler that tests compare with, row by row. Prints one line per case: minimum and median of the calls, and the median
CPU time of all threads, which is less affected by other programs on the machine.

python benchmarks/engine/sampling.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.engine.request import SamplingParams
from ballast.engine.sampling.sampler import SampledRow, ScoredRow, StepSampler, sequence_sampler
from ballast.host.isa import chosen_isa
from devkit.bench_record import bench_record
from devkit.oracles.numpy_sampler import NumpySampler, token_logprobs

VOCABULARY = 129280
CALLS = 60
REFERENCE_CALLS = 5
PROMPT = range(100)
CASES = {
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
    "temperature 0.8": SamplingParams(max_tokens=1, temperature=0.8),
    "temperature 0.6, top_p 0.95": SamplingParams(max_tokens=1, temperature=0.6, top_p=0.95),
    "top_k 50": SamplingParams(max_tokens=1, top_k=50),
    "temperature 0.8, top_k 20, min_p 0.05": SamplingParams(max_tokens=1, temperature=0.8, top_k=20, min_p=0.05),
    "min_p 0.05": SamplingParams(max_tokens=1, min_p=0.05),
    "repetition_penalty 1.1": SamplingParams(max_tokens=1, repetition_penalty=1.1),
}

Logits = NDArray[np.float32]


def main() -> None:
    threads = sorted({1, len(os.sched_getaffinity(0))})
    for shape, make in {"peaked": peaked_logits, "flat": flat_logits}.items():
        for num_rows in (1, 4, 16):
            logits = np.stack([make(row) for row in range(num_rows)])
            for name, params in CASES.items():
                reference = [NumpySampler(params, PROMPT, seed) for seed in range(num_rows)]
                report(f"{name}, in NumPy", shape, 1, logits, sample_in_numpy(reference, logits), REFERENCE_CALLS)
            report(
                "logprobs, 20 alternatives each, in NumPy",
                shape,
                1,
                logits,
                score_in_numpy(logits),
                REFERENCE_CALLS,
            )
            for num_threads in threads:
                step = StepSampler(kernels.ThreadPool(num_threads), chosen_isa())
                for name, params in CASES.items():
                    report(name, shape, num_threads, logits, sample(step, params, logits), CALLS)
                half = np.packbits(np.arange(VOCABULARY) % 2 == 0, bitorder="little")
                plain = CASES["temperature 0.8"]
                report(
                    "temperature 0.8, half masked", shape, num_threads, logits, sample(step, plain, logits, half), CALLS
                )
                report("logprobs, 20 alternatives each", shape, num_threads, logits, score(step, logits), CALLS)


def sample(
    step: StepSampler, params: SamplingParams, logits: Logits, mask: NDArray[np.uint8] | None = None
) -> Callable[[], object]:
    rows = [SampledRow(row, sequence_sampler(params, PROMPT, row), mask) for row in range(len(logits))]
    return lambda: step.sample(logits, rows)


def score(step: StepSampler, logits: Logits) -> Callable[[], object]:
    rows = [ScoredRow(row, 5, 20) for row in range(len(logits))]
    return lambda: step.score(logits, rows)


def score_in_numpy(logits: Logits) -> Callable[[], object]:
    return lambda: [token_logprobs(row, 5, 20) for row in logits]


def sample_in_numpy(samplers: list[NumpySampler], logits: Logits) -> Callable[[], object]:
    return lambda: [sampler.next_token(row) for sampler, row in zip(samplers, logits, strict=True)]


def peaked_logits(seed: int) -> Logits:
    """Logits of a confident model: most are close together, and a few are far higher."""
    rng = np.random.default_rng(seed)
    logits = rng.gumbel(0, 1.6, VOCABULARY).astype(np.float32)
    logits[rng.integers(0, VOCABULARY, 40)] += np.linspace(8, 16, 40).astype(np.float32)
    return logits


def flat_logits(seed: int) -> Logits:
    """Logits of a model that knows nothing: the nucleus is most of the vocabulary."""
    return np.random.default_rng(seed).normal(0, 1, VOCABULARY).astype(np.float32)


def report(case: str, shape: str, num_threads: int, logits: Logits, call: Callable[[], object], calls: int) -> None:
    call()
    times, processor_times = [], []
    for _ in range(calls):
        begin, processor_begin = time.perf_counter(), time.process_time()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
        processor_times.append(1e3 * (time.process_time() - processor_begin))
    record = bench_record(
        "engine/sampling",
        case,
        logits=shape,
        rows=len(logits),
        threads=num_threads,
        min_ms=round(min(times), 3),
        median_ms=round(float(np.median(times)), 3),
        median_cpu_ms=round(float(np.median(processor_times)), 3),
    )
    print(record, flush=True)


if __name__ == "__main__":
    main()
