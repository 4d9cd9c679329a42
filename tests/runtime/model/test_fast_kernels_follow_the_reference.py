"""A whole model with packed weights generates the same text as the plain reference.

Rounding of activations is the only source of differences. With two bytes the text hardly ever differs. With one byte it
often differs for these models, whose random weights amplify every error; there only the distribution is bounded.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast.errors import ConfigError
from ballast.host.isa import chosen_isa
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.kernels.isas import isa_params
from devkit.long import times
from devkit.models.written import MakeTiny
from devkit.oracles.divergence import Prompt, greedy_run, mean_divergence, random_prompts

NUM_PROMPTS, NEW_TOKENS = times(40, 100), times(32, 64)
NUM_COMPARED = 32
"""Prompts of the first step, whose distributions are compared."""


@pytest.fixture(scope="module", params=[("v2lite", "q4_k"), ("v3", "q8_0")], ids="-".join)
def model(written: MakeTiny, request: pytest.FixtureRequest) -> GgufModel:
    arch, quant = request.param
    return open_gguf(written(arch=arch, mla="split", quant=quant).gguf)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return random_prompts(NUM_PROMPTS)


def test_two_bytes_an_activation_give_the_references_text(model: GgufModel, prompts: list[Prompt]):
    texts, distribution = greedy_run(model, prompts, NEW_TOKENS, "reference", 2)
    fast_texts, fast_distribution = greedy_run(model, prompts, NEW_TOKENS, chosen_isa(), 2)
    same = sum(ours == theirs for ours, theirs in zip(fast_texts, texts, strict=True))
    assert same >= 0.95 * NUM_PROMPTS
    assert len(set(texts)) == NUM_PROMPTS, "the texts are too similar to prove anything"
    assert mean_divergence(distribution, fast_distribution) <= 1e-6


@pytest.fixture(scope="module")
def distribution(model: GgufModel, prompts: list[Prompt]) -> NDArray[np.float64]:
    """The reference's distribution, with one byte per activation."""
    return greedy_run(model, prompts[:NUM_COMPARED], 1, "reference", 1)[1]


@pytest.mark.parametrize("isa", isa_params())
def test_one_byte_an_activation_keeps_the_distribution_near(
    model: GgufModel, prompts: list[Prompt], distribution: NDArray[np.float64], isa: str
):
    _, fast_distribution = greedy_run(model, prompts[:NUM_COMPARED], 1, isa, 1)
    assert len(fast_distribution) == NUM_COMPARED
    assert mean_divergence(distribution, fast_distribution) <= 0.2


def test_an_instruction_set_that_cannot_run_here_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BALLAST_CPU_ISA", "avx9")
    with pytest.raises(ConfigError, match=r"BALLAST_CPU_ISA=avx9: usable on this machine are .*reference"):
        chosen_isa()
