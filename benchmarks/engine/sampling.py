"""Cost of sampling one token: CPU time per row on the engine thread, for DeepSeek V3's vocabulary. One line per case.

python benchmarks/engine/sampling.py
"""

from __future__ import annotations

import time

import numpy as np

from ballast.engine.logprobs import token_logprobs
from ballast.engine.request import SamplingParams
from ballast.engine.sampler import SequenceSampler
from support.bench_record import bench_record

VOCABULARY = 128815
REPEATS = 100
CASES = {
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
    "temperature 1": SamplingParams(max_tokens=1),
    "temperature 0.6, top_p 0.95": SamplingParams(max_tokens=1, temperature=0.6, top_p=0.95),
    "top_k 50": SamplingParams(max_tokens=1, top_k=50),
    "min_p 0.05": SamplingParams(max_tokens=1, min_p=0.05),
    "repetition_penalty 1.1": SamplingParams(max_tokens=1, repetition_penalty=1.1),
}


def main() -> None:
    logits = peaked_logits()
    half = np.arange(VOCABULARY) % 2 == 0
    for name, params in CASES.items():
        sampler = SequenceSampler(params, range(100), seed=1)
        report(name, lambda sampler=sampler: sampler.next_token(logits))
    constrained = SequenceSampler(CASES["temperature 1"], (), seed=1)
    report("temperature 1, half the vocabulary masked", lambda: constrained.next_token(logits, half))
    report("logprobs, 20 beside each", lambda: token_logprobs(logits, 5, 20))


def peaked_logits() -> np.ndarray:
    """Logits as of a confident model: most of them close together, and a few far above."""
    rng = np.random.default_rng(0)
    logits = rng.gumbel(0, 1.6, VOCABULARY).astype(np.float32)
    logits[rng.integers(0, VOCABULARY, 40)] += np.linspace(8, 16, 40).astype(np.float32)
    return logits


def report(case: str, call: object) -> None:
    assert callable(call)
    times = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        call()
        times.append(time.thread_time() - begin)
    print(bench_record("engine/sampling", case, cpu_ms_per_row=round(1e3 * float(np.median(times)), 3)), flush=True)


if __name__ == "__main__":
    main()
