"""Turns a step's logits into tokens and log probabilities: all rows in one call; a row that fails affects no other.

A request's token depends on its own logits, parameters, history and position alone: the random number for its
n-th token is a function of (seed, n), so neither the rest of the batch nor a preemption can change the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, sampling
from ballast.engine.request import SamplingParams
from ballast.engine.sampling.constraint import Mask
from ballast.engine.sampling.logprobs import LOWEST, TokenLogprobs

MAX_TOP_K = 2**31 - 1
"""More tokens than any vocabulary has."""
_CONVERTED = ("top_k", "stop_token_ids", "logit_bias", "seed")
_OUTSIDE_THE_SAMPLER = ("max_tokens", "logprobs", "constraint")
_UNCONVERTED = [each.name for each in fields(SamplingParams) if each.name not in (*_CONVERTED, *_OUTSIDE_THE_SAMPLER)]
"""Parameters that the sampler takes without conversion."""


def sequence_sampler(params: SamplingParams, prompt_ids: Sequence[int], seed: int) -> sampling.SequenceSampler:
    """The state that chooses one sequence's tokens. Clients may send negative seeds."""
    repeats = params.repetition_penalty != 1.0
    return sampling.SequenceSampler(
        **{name: getattr(params, name) for name in _UNCONVERTED},
        top_k=min(params.top_k, MAX_TOP_K),
        stop_tokens=np.array(sorted(params.stop_token_ids), np.int32),
        logit_bias=list(params.logit_bias.items()),
        seed=seed & (2**64 - 1),
        prompt=np.array(prompt_ids if repeats else (), np.int32),
    )


@dataclass(frozen=True, slots=True)
class SampledRow:
    """A row of the step's logits that chooses a sequence's next token."""

    row: int
    sampler: sampling.SequenceSampler
    allowed: Mask
    """As ConstraintState.allowed returns it."""


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row of the step's logits whose log probabilities are reported."""

    row: int
    token_id: int
    num_top: int


class StepSampler:
    """Samples on a pool's threads."""

    def __init__(self, pool: kernels.ThreadPool, isa: str) -> None:
        self._sampler = sampling.Sampler(pool, isa=isa)

    def sample(self, logits: NDArray[np.float32], rows: Sequence[SampledRow]) -> list[int | FloatingPointError]:
        """Choose and record a token for each of `rows` from `logits` [rows of the step, vocabulary]. A result is an
        error if no logit is finite, or if one is NaN."""
        if not rows:
            return []
        tokens, highest = self._sampler.sample(
            logits,
            rows=np.array([each.row for each in rows], np.int32),
            sequences=[each.sampler for each in rows],
            allowed=[each.allowed for each in rows],
        )
        return [
            token if is_finite else _not_chosen(token, float(peak))
            for token, is_finite, peak in zip(tokens.tolist(), np.isfinite(highest).tolist(), highest, strict=True)
        ]

    def score(self, logits: NDArray[np.float32], rows: Sequence[ScoredRow]) -> list[TokenLogprobs | FloatingPointError]:
        """The log probabilities of each of `rows` in `logits` [rows of the step, vocabulary]; an error if the largest
        logit is not finite."""
        if not rows:
            return []
        highest, logprobs, top_tokens, top_logprobs = self._sampler.score(
            logits,
            rows=np.array([each.row for each in rows], np.int32),
            token_ids=np.array([each.token_id for each in rows], np.int32),
            num_top=np.array([each.num_top for each in rows], np.int32),
        )
        bounded, bounded_top = np.clip(logprobs, LOWEST, 0.0), np.clip(top_logprobs, LOWEST, 0.0)
        scores: list[TokenLogprobs | FloatingPointError] = []
        for index, row in enumerate(rows):
            if not np.isfinite(highest[index]):
                scores.append(_not_scored(float(highest[index])))
                continue
            num_top = row.num_top
            top = zip(top_tokens[index, :num_top].tolist(), bounded_top[index, :num_top].tolist(), strict=True)
            scores.append(TokenLogprobs(row.token_id, float(bounded[index]), tuple(top)))
        return scores


def has_finite_peak(logits: NDArray[np.float32]) -> bool:
    """Whether a token can be chosen by these logits [vocabulary]: none is NaN, and the largest is finite."""
    return bool(np.isfinite(np.max(logits)))


def _not_chosen(token_id: int, peak: float) -> FloatingPointError:
    return FloatingPointError(f"the model produced the logit {peak} for token {token_id}; nothing can be sampled")


def _not_scored(peak: float) -> FloatingPointError:
    return FloatingPointError(f"the model produced logits whose largest is {peak}; they have no probabilities")
