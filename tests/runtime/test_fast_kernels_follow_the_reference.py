"""A whole model on packed weights says what it says on the plain reference.

The rounding of activations is the only source of difference: with two bytes the text hardly ever differs. With one it
often does on these models, whose random weights amplify every error; there only the distribution is bounded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ballast._core import kernels
from ballast.engine.build import EngineSettings, load_runner, scheduler_config
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import Runner
from ballast.errors import ConfigError
from ballast.model.batch import Batch
from ballast.model.isa import chosen_isa
from ballast.model.metadata import read_spec
from ballast.testing.generate import generate
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import GgufModel, open_gguf

NUM_PROMPTS, NEW_TOKENS = 200, 64
FAST = kernels.usable_isas()[:-1]


@pytest.fixture(scope="module", params=[("v2lite", "q4_k"), ("v3", "q8_0")], ids="-".join)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> GgufModel:
    arch, quant = request.param
    directory: Path = tmp_path_factory.mktemp("tiny")
    return open_gguf(write_tiny_model(directory, arch=arch, mla="split", quant=quant).gguf)


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    rng = random.Random(3)
    return [tuple(rng.randrange(300) for _ in range(rng.randint(4, 40))) for _ in range(NUM_PROMPTS)]


class RecordingRunner:
    """Keeps the logits of every first token."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.first: list[np.ndarray] = []

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        logits = self._runner.forward(batch, alive)
        self.first.append(logits.copy())
        return logits


def run(
    model: GgufModel, prompts: list[tuple[int, ...]], num_tokens: int, isa: str, activation_bytes: int
) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Texts, and log-probabilities of the first sampled tokens of the first step."""
    spec = read_spec(model, None)
    settings = EngineSettings(
        cache_lens=8192,
        max_batch_size=32,
        max_new_tokens=NEW_TOKENS,
        chunk_size=2048,
        prefill_chunk_size=2048,
        max_queue=NUM_PROMPTS,
        block_tokens=16,
        cpu_threads=2,
        cpu_isa=isa,
        activation_bytes=activation_bytes,
    )
    runner = RecordingRunner(load_runner(model, spec, spec.vocab_size, settings))
    core = EngineCore(runner, scheduler_config(settings))
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    results = generate(core, [Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)])
    logits = runner.first[0].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return [result.token_ids for result in results], logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def mean_divergence(p: np.ndarray, q: np.ndarray) -> float:
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def test_two_bytes_an_activation_give_the_references_text(model: GgufModel, prompts: list[tuple[int, ...]]):
    texts, distribution = run(model, prompts, NEW_TOKENS, "reference", 2)
    fast_texts, fast_distribution = run(model, prompts, NEW_TOKENS, FAST[0], 2)
    same = sum(ours == theirs for ours, theirs in zip(fast_texts, texts, strict=True))
    assert same >= 0.95 * NUM_PROMPTS
    assert len(set(texts)) == NUM_PROMPTS, "the texts are too alike to prove anything"
    assert mean_divergence(distribution, fast_distribution) <= 1e-6


@pytest.mark.parametrize("isa", FAST)
def test_one_byte_an_activation_keeps_the_distribution_near(model: GgufModel, prompts: list[tuple[int, ...]], isa: str):
    _, distribution = run(model, prompts[:64], 1, "reference", 1)
    _, fast_distribution = run(model, prompts[:64], 1, isa, 1)
    assert mean_divergence(distribution, fast_distribution) <= 0.2


def test_an_instruction_set_that_cannot_run_here_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BALLAST_CPU_ISA", "avx9")
    with pytest.raises(ConfigError, match=r"BALLAST_CPU_ISA=avx9: usable on this machine are .*reference"):
        chosen_isa()
