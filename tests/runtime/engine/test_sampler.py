"""Sampling: each parameter keeps the right tokens, and a token depends only on its own request."""

from __future__ import annotations

import numpy as np
import pytest

from ballast.engine.request import SamplingParams
from devkit.compiled_sampler import CompiledSampler

VOCABULARY = 50
BLOCK = 512
"""Number of logits whose weights are summed together."""


def sampler(prompt: tuple[int, ...] = (), seed: int = 1, **params: object) -> CompiledSampler:
    return CompiledSampler(SamplingParams(max_tokens=1000, **params), prompt, seed)


def logits_of(probabilities: dict[int, float]) -> np.ndarray:
    logits = np.full(VOCABULARY, -np.inf, np.float32)
    for token, probability in probabilities.items():
        logits[token] = np.log(probability)
    return logits


def draw(logits: np.ndarray, count: int = 4000, **params: object) -> dict[int, float]:
    """Fraction of each token over `count` seeds."""
    tokens = [sampler(seed=seed, **params).next_token(logits) for seed in range(count)]
    return {token: tokens.count(token) / count for token in set(tokens)}


def test_temperature_zero_takes_the_most_probable_token_with_ties_by_lowest_id():
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[7, 9]] = 3.0
    assert sampler(temperature=0.0).next_token(logits) == 7


def test_plain_sampling_follows_the_probabilities():
    shares = draw(logits_of({3: 0.7, 5: 0.2, 8: 0.1}))
    assert shares.keys() == {3, 5, 8}
    assert shares[3] == pytest.approx(0.7, abs=0.03)
    assert shares[8] == pytest.approx(0.1, abs=0.02)


def test_temperature_flattens_and_sharpens():
    logits = logits_of({0: 0.8, 1: 0.2})
    assert draw(logits, temperature=2.0)[0] == pytest.approx(2 / 3, abs=0.03)  # sqrt(.8) : sqrt(.2)
    assert draw(logits, temperature=0.5)[0] == pytest.approx(0.64 / 0.68, abs=0.03)


def test_top_k_keeps_exactly_k_tokens_even_among_equals():
    assert draw(np.zeros(VOCABULARY, np.float32), top_k=3).keys() == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = logits_of({3: 0.5, 5: 0.3, 8: 0.15, 9: 0.05})
    assert draw(logits, top_p=0.5).keys() == {3}
    assert draw(logits, top_p=0.51).keys() == {3, 5}
    assert draw(logits, top_p=0.9).keys() == {3, 5, 8}


def test_top_p_keeps_its_fraction_of_a_flat_distribution():
    size = 8 * BLOCK
    flat = np.zeros(size, np.float32)
    tokens = {sampler(seed=seed, top_p=0.9).next_token(flat) for seed in range(3000)}
    assert max(tokens) > 6 * BLOCK
    assert max(tokens) <= int(0.9 * size)


def test_min_p_is_relative_to_the_most_probable_token():
    assert draw(logits_of({3: 0.6, 5: 0.3, 8: 0.1}), min_p=0.4).keys() == {3, 5}


def test_frequency_and_presence_penalties_count_generated_tokens_only():
    logits = np.zeros(VOCABULARY, np.float32)
    logits[4], logits[6] = 1.0, 0.5
    presence = sampler(prompt=(4,), temperature=0.0, presence_penalty=0.6)
    assert [presence.next_token(logits) for _ in range(3)] == [4, 6, 4]  # 1.0; then 0.4 < 0.5; then 0.4 > -0.1
    frequency = sampler(temperature=0.0, frequency_penalty=0.3)
    assert [frequency.next_token(logits) for _ in range(4)] == [4, 4, 6, 4]


def test_repetition_penalty_counts_the_prompt_and_shrinks_towards_less_likely_on_both_signs():
    logits = np.full(VOCABULARY, -9.0, np.float32)
    logits[4], logits[6] = 1.0, 0.9
    assert sampler(prompt=(4,), temperature=0.0, repetition_penalty=1.5).next_token(logits) == 6
    negative = np.full(VOCABULARY, -9.0, np.float32)
    negative[4], negative[6] = -1.0, -1.1
    assert sampler(prompt=(4,), temperature=0.0, repetition_penalty=1.5).next_token(negative) == 6


def test_logit_bias_forbids_and_forces():
    logits = logits_of({3: 0.9, 5: 0.1})
    assert draw(logits, count=50, logit_bias={3: -100.0}).keys() == {5}
    assert sampler(temperature=0.0, logit_bias={9: 100.0}).next_token(np.zeros(VOCABULARY, np.float32)) == 9


def test_stop_tokens_are_not_sampled_before_min_tokens():
    logits = logits_of({1: 0.9, 2: 0.1})
    state = sampler(temperature=0.0, min_tokens=2, stop_token_ids=frozenset({1}))
    assert [state.next_token(logits) for _ in range(3)] == [2, 2, 1]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_different_ones():
    flat = np.zeros(VOCABULARY, np.float32)

    def text(seed: int) -> list[int]:
        state = sampler(seed=seed)
        return [state.next_token(flat) for _ in range(30)]

    assert text(5) == text(5)
    assert text(5) != text(6)
    assert text(-1) == text(-1)


def test_adjustments_do_not_modify_the_callers_logits():
    logits = np.zeros(VOCABULARY, np.float32)
    sampler(prompt=(1,), repetition_penalty=2.0, logit_bias={2: 5.0}).next_token(logits)
    assert not logits.any()


def test_logits_that_are_not_numbers_are_an_error_not_a_token():
    with pytest.raises(FloatingPointError, match="nan"):
        sampler().next_token(np.full(VOCABULARY, np.nan, np.float32))
