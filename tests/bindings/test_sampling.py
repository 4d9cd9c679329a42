"""The compiled sampler chooses the same tokens as the plain NumPy one, with every instruction set, any number of
threads and any other rows in the batch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast._core import kernels, sampling
from ballast.engine.request import SamplingParams
from ballast.engine.sampling.sampler import SampledRow, ScoredRow, StepSampler, sequence_sampler
from devkit.compiled_sampler import CompiledSampler, compiled_logprobs
from devkit.kernels.isas import FAST_ISAS, isa_params
from devkit.oracles.numpy_sampler import NumpySampler, token_logprobs

Logits = NDArray[np.float32]
VOCABULARIES = (1, 2, 9, 511, 512, 513, 3000)
TEMPERATURES = (0.0, 0.05, 0.6, 1.0, 2.0)
SEEDS = (0, 1, -1, 2**63, 2**64 - 1)


def masked(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    logits = np.where(rng.random(size) < 0.9, -np.inf, rng.normal(0, 2, size))
    logits[rng.integers(size)] = 1.0
    return logits


def peaked(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    logits = rng.gumbel(0, 1.6, size)
    logits[rng.integers(0, size, 5)] += 15.0
    return logits


SHAPES: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "flat": lambda rng, size: rng.normal(0, 1, size),
    "peaked": peaked,
    "equal": lambda rng, size: np.full(size, rng.normal()),
    "tied": lambda rng, size: rng.integers(-3, 4, size).astype(np.float64),
    "masked": masked,
    "in two heaps": lambda rng, size: rng.normal(0, 1e-6, size) + 100.0 * (rng.random(size) < 0.5),
    "sorted": lambda rng, size: np.sort(rng.normal(0, 3, size)),
}


def random_params(rng: np.random.Generator, size: int) -> SamplingParams:
    fields: dict[str, Any] = {
        "temperature": float(rng.choice(TEMPERATURES)),
        "top_p": float(rng.choice([0.0, 1e-9, 0.5, 0.95, 0.999, 1.0, 1.0])),
        "top_k": int(rng.choice([0, 0, 1, 5, 50, size - 1, size, size + 5])),
        "min_p": float(rng.choice([0.0, 0.0, 0.01, 0.5, 1.0])),
    }
    if rng.random() < 0.5:
        fields |= {
            "presence_penalty": float(rng.choice([0.0, 0.5, -1.0])),
            "frequency_penalty": float(rng.choice([0.0, 0.3, -0.5])),
            "repetition_penalty": float(rng.choice([1.0, 1.3, 0.7])),
        }
    if rng.random() < 0.3:
        fields["logit_bias"] = {int(token): float(rng.choice([-100.0, 3.0])) for token in rng.integers(0, size, 3)}
    if rng.random() < 0.3:
        fields |= {"min_tokens": 2, "stop_token_ids": frozenset(rng.integers(0, size + 3, 2).tolist())}
    return SamplingParams(max_tokens=99, **fields)


def attempt(sampler: NumpySampler | CompiledSampler, logits: Logits, allowed: NDArray[np.bool_] | None) -> int | str:
    try:
        return sampler.next_token(logits, allowed)
    except FloatingPointError as error:
        return str(error)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", VOCABULARIES)
def test_tokens_match_the_reference_sampler(size: int, shape: str) -> None:
    rng = np.random.default_rng(size)
    for seed in range(25):
        logits = SHAPES[shape](rng, size).astype(np.float32)
        params, prompt = random_params(rng, size), rng.integers(0, size + 10, 5).tolist()
        pair = (
            NumpySampler(params, prompt, SEEDS[seed % 5] - seed),
            CompiledSampler(params, prompt, SEEDS[seed % 5] - seed),
        )
        for _ in range(3):
            allowed = None
            if rng.random() < 0.3:
                allowed = rng.random(size) < rng.choice([0.02, 0.5])
                allowed[rng.integers(size)] = True
            plain, compiled = (attempt(sampler, logits, allowed) for sampler in pair)
            assert compiled == plain, params
            if isinstance(plain, str):
                break


@pytest.mark.parametrize("size", [32000, 129280])
@pytest.mark.parametrize("shape", ["flat", "peaked", "equal", "tied"])
def test_so_they_are_in_vocabularies_of_real_models(size: int, shape: str) -> None:
    rng = np.random.default_rng(size)
    logits = SHAPES[shape](rng, size).astype(np.float32)
    for fields in (
        {"temperature": 0.8},
        {"temperature": 0.6, "top_p": 0.95},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
    ):
        params = SamplingParams(max_tokens=1, **fields)
        pair = NumpySampler(params, (), 5), CompiledSampler(params, (), 5)
        plain, compiled = ([sampler.next_token(logits) for _ in range(2)] for sampler in pair)
        assert compiled == plain, fields


def test_random_numbers_are_numpys() -> None:
    """With 2^20 equal logits, the token is given by the first twenty bits of the random number."""
    size = 2**20
    logits = np.zeros(size, np.float32)
    for seed in SEEDS:
        sampler = CompiledSampler(SamplingParams(max_tokens=9), (), seed)
        philox = [np.random.Philox(key=seed % 2**64, counter=n) for n in range(3)]
        expected = [int(np.random.Generator(each).random() * size) for each in philox]
        assert [sampler.next_token(logits) for _ in philox] == expected


@pytest.mark.parametrize("isa", isa_params(*FAST_ISAS))
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    pool = kernels.ThreadPool(1)
    steps = [StepSampler(pool, each) for each in (isa, "reference")]
    rng = np.random.default_rng(3)
    for n in range(60):
        size = VOCABULARIES[n % len(VOCABULARIES)]
        logits = SHAPES[[*SHAPES][n % len(SHAPES)]](rng, size).astype(np.float32)
        params = random_params(rng, size)
        own, plain = (attempt(CompiledSampler(params, (1, 2), n, step), logits, None) for step in steps)
        assert own == plain, params
        own_scores, plain_scores = (compiled_logprobs(logits, 0, 5, step) for step in steps)
        assert own_scores == plain_scores


def rows_of(logits: Logits) -> Iterator[SampledRow]:
    for row in range(len(logits)):
        rng = np.random.default_rng(row)
        params = random_params(rng, logits.shape[1])
        allowed = np.packbits(rng.random(logits.shape[1]) < 0.9, bitorder="little") if row % 3 == 0 else None
        yield SampledRow(row, sequence_sampler(params, (1, 2, 3), row), allowed)


def test_a_row_is_independent_of_threads_and_other_rows() -> None:
    """This includes rows beyond the 32 that are sampled together."""
    rng = np.random.default_rng(4)
    names = [*SHAPES]
    logits = np.stack([SHAPES[names[n % len(names)]](rng, 2000) for n in range(35)]).astype(np.float32)
    alone = StepSampler(kernels.ThreadPool(1), "reference")
    expected = [alone.sample(logits, [row])[0] for row in rows_of(logits)]
    scored = [ScoredRow(row, row, row % 4) for row in range(len(logits))]
    scores = [alone.score(logits, [row])[0] for row in scored]
    for num_threads in (1, 3):
        step = StepSampler(kernels.ThreadPool(num_threads), kernels.usable_isas()[0])
        assert step.sample(logits, [*rows_of(logits)]) == expected
        assert step.score(logits, scored) == scores
        backwards = [*rows_of(logits)][::-1]
        assert step.sample(logits, backwards) == expected[::-1]


@pytest.mark.parametrize("shape", ["flat", "peaked", "tied", "in two heaps"])
def test_a_row_divided_among_many_threads_gives_the_same_token(shape: str) -> None:
    rng = np.random.default_rng(5)
    logits = SHAPES[shape](rng, 40_000).astype(np.float32)[None]
    alone, together = (StepSampler(kernels.ThreadPool(count), kernels.usable_isas()[0]) for count in (1, 4))
    mask = np.packbits(rng.random(40_000) < 0.5, bitorder="little")
    for seed in range(20):
        params = random_params(rng, 40_000)
        allowed = mask if seed % 3 == 0 else None
        one, other = (SampledRow(0, sequence_sampler(params, (1, 2, 3), seed), allowed) for _ in range(2))
        for _ in range(2):
            assert together.sample(logits, [one]) == alone.sample(logits, [other]), params
    assert together.score(logits, [ScoredRow(0, 3, 20)]) == alone.score(logits, [ScoredRow(0, 3, 20)])


def test_only_the_row_with_nans_fails_and_its_sequence_is_unchanged() -> None:
    step = StepSampler(kernels.ThreadPool(2), kernels.usable_isas()[0])
    logits = np.zeros((4, 100), np.float32)
    logits[1, 40], logits[2, 60], logits[3] = math.nan, math.inf, -math.inf
    params = SamplingParams(max_tokens=9, temperature=0.0, presence_penalty=1.0)
    samplers = [sequence_sampler(params, (), 0) for _ in logits]
    token, *errors = step.sample(logits, [SampledRow(row, sampler, None) for row, sampler in enumerate(samplers)])
    assert token == 0
    assert [str(error).removesuffix("; nothing can be sampled") for error in errors] == [
        f"the model produced the logit {logit} for token {at}" for logit, at in (("nan", 40), ("inf", 60), ("-inf", 0))
    ]
    assert step.sample(logits, [SampledRow(0, sampler, None) for sampler in samplers]) == [1, 0, 0, 0]
    scores = step.score(logits, [ScoredRow(row, 5, 2) for row in range(4)])
    assert [isinstance(score, FloatingPointError) for score in scores] == [False, True, True, True]
    assert "largest is nan" in str(scores[1])


def test_a_nan_logit_of_a_masked_token_has_no_effect() -> None:
    logits = np.zeros(20, np.float32)
    logits[7] = math.nan
    allowed = np.arange(20) == 4
    assert CompiledSampler(SamplingParams(max_tokens=1), (), 1).next_token(logits, allowed) == 4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", VOCABULARIES)
def test_log_probabilities_match_the_reference(size: int, shape: str) -> None:
    logits = SHAPES[shape](np.random.default_rng(size), size).astype(np.float32)
    for num_top in (0, 1, 20, size + 1):
        plain, compiled = (score(logits, size - 1, num_top) for score in (token_logprobs, compiled_logprobs))
        assert [token for token, _ in compiled.top] == [token for token, _ in plain.top]
        expected = [plain.logprob, *(logprob for _, logprob in plain.top)]
        assert [compiled.logprob, *(logprob for _, logprob in compiled.top)] == pytest.approx(expected, abs=1e-5)


def sampler_of(**fields: Any) -> sampling.SequenceSampler:
    return sequence_sampler(SamplingParams(max_tokens=1, **fields), (), 0)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"logits": np.zeros((2, 9), np.float64)}, ValueError, "logits is float64"),
        ({"logits": np.zeros((2, 0), np.float32)}, ValueError, "expected V to be 1 or more"),
        ({"rows": np.array([2], np.int32)}, IndexError, "rows has 2; logits has 2"),
        ({"rows": np.array([0, 1], np.int32)}, ValueError, r"rows = 1"),
        ({"allowed": []}, ValueError, "allowed has 0 entries"),
        ({"allowed": [np.zeros(1, np.uint8)]}, ValueError, "expected a bit a token, 2 bytes or more"),
        ({"allowed": [np.ones(9, np.bool_)]}, ValueError, "allowed is bool"),
        ({"sequences": [sampler_of(logit_bias={9: 1.0})]}, IndexError, "logit_bias has token 9; the model has 9"),
    ],
)
def test_mismatched_arguments_are_rejected_by_name(change: dict[str, Any], error: type[Exception], text: str) -> None:
    sampler = sampling.Sampler(kernels.ThreadPool(1), isa="reference")
    given: dict[str, Any] = {
        "logits": np.zeros((2, 9), np.float32),
        "rows": np.array([1], np.int32),
        "sequences": [sampler_of()],
        "allowed": [None],
    }
    assert sampler.sample(**given)[0].shape == (1,)
    with pytest.raises(error, match=text):
        sampler.sample(**(given | change))


def test_a_sequence_is_sampled_once_a_step() -> None:
    sampler, twice = sampling.Sampler(kernels.ThreadPool(1), isa="reference"), sampler_of()
    with pytest.raises(ValueError, match="sequences has one twice"):
        sampler.sample(
            np.zeros((2, 9), np.float32),
            rows=np.array([0, 1], np.int32),
            sequences=[twice, twice],
            allowed=[None, None],
        )


def test_scores_of_tokens_outside_the_vocabulary_are_rejected() -> None:
    sampler = sampling.Sampler(kernels.ThreadPool(1), isa="reference")
    none = np.zeros(1, np.int32)
    with pytest.raises(IndexError, match="token_ids has 9; the vocabulary has 9"):
        sampler.score(np.zeros((1, 9), np.float32), rows=none, token_ids=np.array([9], np.int32), num_top=none)


NUMBERS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
}


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (NUMBERS | {"top_a": 0.1}, "unknown argument: top_a"),
        ({name: NUMBERS[name] for name in NUMBERS if name != "min_p"}, "missing argument: min_p"),
        (NUMBERS | {"top_k": 1.5}, "top_k is 1.5; expected a whole number"),
        (NUMBERS | {"top_p": "1"}, "top_p is '1'; expected a number"),
    ],
)
def test_a_sequence_needs_every_number_and_refuses_others(numbers: dict[str, Any], message: str) -> None:
    ids = np.zeros(0, np.int32)
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        sampling.SequenceSampler(stop_tokens=ids, logit_bias=[], seed=0, prompt=ids, **numbers)
