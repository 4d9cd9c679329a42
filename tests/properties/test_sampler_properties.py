"""The sampler's shortcuts for large vocabularies give the result of a plain loop."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ballast.engine.request import SamplingParams
from devkit.compiled_sampler import CompiledSampler
from devkit.oracles.numpy_sampler import BLOCK, _index_at, _nucleus

# Eighths add up exactly, so a plain loop is an exact oracle.
weights_of = st.lists(st.integers(0, 40).map(lambda n: n / 8), min_size=1, max_size=60).map(
    lambda values: np.array([*values, 5.0])
)


@given(weights_of, st.integers(0, 3 * BLOCK), st.floats(0, 1, exclude_max=True))
def test_the_running_sum_exceeds_the_threshold_at_the_chosen_index(
    weights: np.ndarray, padding: int, share: float
) -> None:
    weights = np.concatenate([weights, np.zeros(padding), weights])
    index = _index_at(weights, share)
    threshold = share * float(weights.sum())
    assert weights[index] > 0
    assert weights[:index].sum() <= threshold < weights[: index + 1].sum()


@given(
    arrays.arrays(np.float64, st.integers(1, 4 * BLOCK), elements=st.floats(0, 1)),
    st.floats(0, 1, exclude_max=True, width=32),
)
def test_an_impossible_token_is_never_chosen(weights: np.ndarray, share: float) -> None:
    weights[len(weights) // 2] = 1.0
    assert weights[_index_at(weights, share)] > 0


@given(weights_of, st.integers(0, 500), st.sampled_from([0.0, 0.125, 0.5, 0.75, 0.96875, 0.999]))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(weights: np.ndarray, padding: int, top_p: float) -> None:
    weights = np.concatenate([weights, np.full(padding, 1 / 64)])
    order = sorted(range(len(weights)), key=lambda n: (-weights[n], n))
    reached = itertools.accumulate(weights[n] for n in order)
    size = next(count for count, total in enumerate(reached, 1) if total >= top_p * weights.sum())
    assert _nucleus(weights, top_p).tolist() == order[:size]


@given(st.integers(0, 2**63), st.integers(1, 1000), st.sampled_from([0, 1, 40]), st.sampled_from([1.0, 0.9, 0.0]))
def test_a_chosen_token_meets_top_k_top_p_and_min_p(seed: int, size: int, top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(seed).normal(0, 4, size).astype(np.float32)
    params = SamplingParams(max_tokens=1, top_k=top_k, top_p=top_p, min_p=0.01)
    token = CompiledSampler(params, (), seed).next_token(logits)
    assert logits[token] >= logits.max() + np.log(0.01) - 1e-3
    assert np.count_nonzero(logits > logits[token]) < (top_k or size)
    assert top_p > 0 or token == int(np.argmax(logits))
