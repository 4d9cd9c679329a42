"""Greedy texts and next-token distributions of a model with given kernels, to compare kernels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.model.batch import Batch
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.weights.gguf import GgufModel
from devkit.generate import generate

Prompt = tuple[int, ...]


def random_prompts(count: int) -> list[Prompt]:
    """Prompts of 4 to 40 tokens; every tiny model knows the first 300 ids."""
    rng = random.Random(3)
    return [tuple(rng.randrange(300) for _ in range(rng.randint(4, 40))) for _ in range(count)]


class _RecordingRunner(Runner):
    """Records the logits of every step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.steps: list[NDArray[np.float32]] = []

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        logits = self._runner.forward(batch, alive)
        self.steps.append(logits.copy())
        return logits


def greedy_run(
    model: GgufModel, prompts: Sequence[Prompt], num_tokens: int, isa: str, activation_bytes: int
) -> tuple[list[Prompt], NDArray[np.float64]]:
    """Texts, and log-probabilities [prompts of the first step, vocabulary] of their first tokens."""
    spec = read_spec(model, None)
    settings = EngineSettings(
        cache_lens=8192,
        max_batch_size=32,
        max_new_tokens=num_tokens,
        chunk_size=2048,
        prefill_chunk_size=2048,
        max_queue=len(prompts),
        block_tokens=16,
        cpu_threads=2,
        cpu_isa=isa,
        activation_bytes=activation_bytes,
    )
    runner = _RecordingRunner(load_runner(model, spec, spec.vocab_size, settings))
    core = EngineCore(runner, scheduler_config(settings))
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    results = generate(core, [Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)])
    return [result.token_ids for result in results], log_probabilities(runner.steps[0])


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities of rows of logits."""
    below = logits.astype(np.float64)
    below -= below.max(axis=1, keepdims=True)
    below -= np.log(np.exp(below).sum(axis=1, keepdims=True))
    return below


def divergences(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Kullback-Leibler divergence of q from p for each row, in nats. Both are log-probabilities."""
    found: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=1)
    return found


def mean_divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Mean over rows of `divergences`."""
    return float(divergences(p, q).mean())
