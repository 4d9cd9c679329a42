"""Sampled frequencies against an independent implementation of each parameter. Fixed seeds make results
reproducible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ballast.engine.request import SamplingParams
from devkit.compiled_sampler import CompiledSampler

VOCABULARY = 40
DRAWS = 1500
STOPS = frozenset({2, 3})
HISTORY = [4, 4, 4, 9, 11]
PROMPT = (4, 20, 21)


def expected(logits: np.ndarray, params: SamplingParams, allowed: np.ndarray | None) -> np.ndarray:
    """The distribution over tokens according to the parameters' documentation."""
    adjusted = {token: float(logit) for token, logit in enumerate(logits)}
    for token in {*PROMPT, *HISTORY}:
        value = adjusted[token]
        adjusted[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token in set(HISTORY):
        adjusted[token] -= params.presence_penalty + params.frequency_penalty * HISTORY.count(token)
    for token, bias in params.logit_bias.items():
        adjusted[token] += bias
    if len(HISTORY) < params.min_tokens:
        adjusted = {token: value for token, value in adjusted.items() if token not in params.stop_token_ids}
    if allowed is not None:
        adjusted = {token: value for token, value in adjusted.items() if allowed[token]}
    highest = max(adjusted.values())
    weights = {token: np.exp((value - highest) / params.temperature) for token, value in adjusted.items()}
    ordered = sorted(weights, key=lambda token: (-weights[token], token))
    if params.top_k:
        ordered = ordered[: params.top_k]
    ordered = [token for token in ordered if weights[token] >= params.min_p]
    total, kept, reached = sum(weights[token] for token in ordered), [], 0.0
    for token in ordered:
        if reached >= params.top_p * total:
            break
        kept.append(token)
        reached += weights[token]
    shares = np.zeros(VOCABULARY)
    shares[kept] = [weights[token] / reached for token in kept]
    return shares


ODD = np.arange(VOCABULARY) % 2 == 1

CASES: dict[str, tuple[dict[str, Any], np.ndarray | None]] = {
    "plain": ({}, None),
    "temperature": ({"temperature": 0.6}, None),
    "hot": ({"temperature": 1.9}, None),
    "top_k": ({"top_k": 7}, None),
    "top_p": ({"top_p": 0.7}, None),
    "min_p": ({"min_p": 0.15}, None),
    "presence": ({"presence_penalty": 1.5}, None),
    "frequency": ({"frequency_penalty": 0.8}, None),
    "frequency, negative": ({"frequency_penalty": -0.5}, None),
    "repetition": ({"repetition_penalty": 1.7}, None),
    "bias": ({"logit_bias": {5: 2.5, 6: -100.0, 7: 1.0}}, None),
    "min_tokens": ({"min_tokens": 9, "stop_token_ids": STOPS}, None),
    "min_tokens, past": ({"min_tokens": 5, "stop_token_ids": STOPS}, None),
    "grammar": ({}, ODD),
    "all": (
        {
            "temperature": 0.8,
            "top_k": 20,
            "top_p": 0.9,
            "min_p": 0.02,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
            "repetition_penalty": 1.2,
            "logit_bias": {5: 1.0, 8: -1.0},
            "min_tokens": 9,
            "stop_token_ids": STOPS,
        },
        ODD,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_token_frequencies_match_the_parameters(case: str):
    fields, allowed = CASES[case]
    logits = np.random.default_rng(7).normal(0, 2, VOCABULARY).astype(np.float32)
    params = SamplingParams(max_tokens=1000, **fields)
    counts = np.zeros(VOCABULARY)
    for seed in range(DRAWS):
        sampler = CompiledSampler(params, PROMPT, seed)
        for token in HISTORY:
            forced = np.full(VOCABULARY, -1e9, np.float32)
            forced[token] = 1e9
            assert sampler.next_token(forced) == token
        counts[sampler.next_token(logits, allowed)] += 1
    shares = expected(logits, params, allowed)
    assert counts[shares == 0].sum() == 0, "a token excluded by the parameters was sampled"
    # Pearson's statistic over the frequent tokens; the others are combined into one bin.
    often = shares * DRAWS >= 5
    seen = np.append(counts[often], counts[~often].sum())
    expected_draws = np.append(shares[often], shares[~often].sum()) * DRAWS
    seen, expected_draws = seen[expected_draws > 0], expected_draws[expected_draws > 0]
    degrees = max(1, len(expected_draws) - 1)
    statistic = float(np.sum((seen - expected_draws) ** 2 / expected_draws))
    # Wilson and Hilferty's approximation of the quantile with a false positive rate of one in a million.
    limit = degrees * (1 - 2 / (9 * degrees) + 4.75 * np.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < limit, f"chi-square {statistic:.1f} with {degrees} degrees of freedom, at most {limit:.1f}"


def test_a_grammar_that_allows_only_the_end_overrides_min_tokens():
    params = SamplingParams(max_tokens=100, min_tokens=9, stop_token_ids=STOPS)
    allowed = np.zeros(VOCABULARY, np.bool_)
    allowed[3] = True
    assert CompiledSampler(params, (), 1).next_token(np.zeros(VOCABULARY, np.float32), allowed) == 3


def test_the_next_draw_is_independent_of_the_last():
    """Adjacent seeds and positions draw independent numbers."""
    logits = np.zeros(2, np.float32)
    params = SamplingParams(max_tokens=1000)
    coins = np.array(
        [[s.next_token(logits) for _ in range(16)] for s in (CompiledSampler(params, (), n) for n in range(500))]
    )
    for shifted in (np.roll(coins, 1, axis=0), np.roll(coins, 1, axis=1)):
        assert abs(np.mean(coins == shifted) - 0.5) < 0.03
