"""Sampling and log probabilities in NumPy: the reference for csrc/sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ballast.engine.request import SamplingParams
from ballast.engine.sampling.logprobs import LOWEST, TokenLogprobs

BLOCK = 512


class NumpySampler:
    """Chooses the next token of one sequence and remembers the chosen tokens."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], seed: int) -> None:
        self._params = params
        self._seed = seed & (2**64 - 1)  # clients may send negative seeds; Philox rejects them
        self._generated: Counter[int] = Counter()
        self._num_generated = 0
        self._seen: set[int] = set(prompt_ids) if params.repetition_penalty != 1.0 else set()

    def next_token(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None) -> int:
        """Choose among the `allowed` tokens by `logits` [vocabulary], and record the choice.

        Raises FloatingPointError when no logit is finite.
        """
        token = self._choose(self._adjust(logits, allowed))
        self._generated[token] += 1
        self._num_generated += 1
        if self._params.repetition_penalty != 1.0:
            self._seen.add(token)
        return token

    def _adjust(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> NDArray[np.floating]:
        """The logits after penalties, bias and bans (early stop tokens, and tokens that are not allowed). Returns a
        copy unless nothing changes."""
        params = self._params
        penalised = bool(params.presence_penalty or params.frequency_penalty) and self._num_generated > 0
        forbid_stop = self._num_generated < params.min_tokens
        if not (penalised or self._seen or params.logit_bias or forbid_stop or allowed is not None):
            return logits
        adjusted = logits.astype(np.float64)
        if self._seen:
            seen = _within(self._seen, adjusted.size)
            values = adjusted[seen]
            penalty = params.repetition_penalty
            adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
        if penalised:
            counts = np.array(list(self._generated.values()), dtype=np.float64)
            adjusted[list(self._generated)] -= params.frequency_penalty * counts + params.presence_penalty
        for token, bias in params.logit_bias.items():
            adjusted[token] += bias
        if allowed is not None:
            adjusted[~allowed] = -np.inf
        if forbid_stop:
            stops = _within(params.stop_token_ids, adjusted.size)
            if allowed is None or np.count_nonzero(allowed) > np.count_nonzero(allowed[stops]):
                adjusted[stops] = -np.inf
        return adjusted

    def _choose(self, logits: NDArray[np.floating]) -> int:
        best = int(np.argmax(logits))
        if not np.isfinite(logits[best]):
            raise FloatingPointError(
                f"the model produced the logit {logits[best]} for token {best}; nothing can be sampled"
            )
        if self._params.temperature == 0.0:
            return best
        candidates, weights = self._candidates(logits, float(logits[best]))
        index = _index_at(weights, self._uniform())
        return index if candidates is None else int(candidates[index])

    def _candidates(
        self, logits: NDArray[np.floating], highest: float
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.float64]]:
        """The tokens that remain after top-k, min-p and top-p, applied in this order, and their unnormalised
        probabilities. None means all tokens, ordered by id."""
        params = self._params
        tokens: NDArray[np.int64] | None = None
        if 0 < params.top_k < logits.size:
            tokens = largest(logits, params.top_k)
            logits = logits[tokens]
        # Weights are relative to the most probable token, so min-p is a plain threshold.
        # `_adjust` has already copied doubles; another copy would cost more than the arithmetic.
        weights = logits.astype(np.float64, copy=False)
        weights -= highest
        weights /= params.temperature
        np.exp(weights, out=weights)
        if params.min_p > 0.0:
            tokens, weights = _only(np.flatnonzero(weights >= params.min_p), tokens, weights)
        if params.top_p < 1.0:
            tokens, weights = _only(_nucleus(weights, params.top_p), tokens, weights)
        return tokens, weights

    def _uniform(self) -> float:
        """The random number in [0, 1) for this seed and position."""
        philox = np.random.Philox(key=self._seed, counter=self._num_generated)
        return float(np.random.Generator(philox).random())


def _within(tokens: set[int] | frozenset[int], vocabulary: int) -> list[int]:
    return [token for token in tokens if token < vocabulary]


def _index_at(weights: NDArray[np.float64], share: float) -> int:
    """The index at which the running sum of `weights` exceeds `share` of the total. Its weight is never 0."""
    # Sum blocks first: a running sum over a whole vocabulary costs more than all other steps.
    sums = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.size, BLOCK)))
    threshold = share * float(sums[-1])
    block = _first_above(sums, threshold)
    before = float(sums[block - 1]) if block else 0.0
    inside = np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK])
    return block * BLOCK + _first_above(inside, threshold - before)


def _first_above(sums: NDArray[np.float64], threshold: float) -> int:
    """Index of the first running sum above `threshold`. If rounding leaves none: the first that equals the total."""
    index = int(np.searchsorted(sums, threshold, side="right"))
    return index if index < sums.size else int(np.searchsorted(sums, sums[-1], side="left"))


def _only(
    kept: NDArray[np.int64], tokens: NDArray[np.int64] | None, weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return kept if tokens is None else tokens[kept], weights[kept]


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Indices of the smallest set of most probable entries whose share reaches `top_p`, largest first."""
    total = float(np.sum(weights))
    # The entries below this have a total share below 1 - top_p, so none of them is in the nucleus. The factor 0.5
    # allows for rounding. The most probable entry is always in the nucleus.
    smallest = min(0.5 * (1.0 - top_p) * total / weights.size, float(np.max(weights)))
    likely = np.flatnonzero(weights >= smallest)
    order = likely[np.argsort(-weights[likely], kind="stable")]
    cumulative = np.cumsum(weights[order])
    return order[: int(np.searchsorted(cumulative, top_p * total, side="left")) + 1]


def token_logprobs(logits: NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs:
    """Log probabilities of `token_id` and of the `num_top` most probable tokens, from `logits` [vocabulary].

    Raises FloatingPointError when the largest logit is not a finite number.
    """
    highest = float(np.max(logits))
    if not np.isfinite(highest):  # the maximum of NaN and any value is NaN
        raise FloatingPointError(f"the model produced logits whose largest is {highest}; they have no probabilities")
    log_sum = highest + float(np.log(np.sum(np.exp(logits - highest, dtype=np.float32), dtype=np.float64)))
    top = largest(logits, min(num_top, logits.size)) if num_top else ()
    return TokenLogprobs(
        token_id,
        _bounded(float(logits[token_id]) - log_sum),
        tuple((int(token), _bounded(float(logits[token]) - log_sum)) for token in top),
    )


def largest(values: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest values, largest first; ties go to the lower index."""
    threshold = np.partition(values, values.size - count)[values.size - count]
    at_least = np.flatnonzero(values >= threshold)
    order = np.argsort(-values[at_least], kind="stable")
    return at_least[order[:count]]


def _bounded(logprob: float) -> float:
    # Rounding may lift the logarithm of a probability near 1 above 0.
    return max(LOWEST, min(0.0, logprob)) if np.isfinite(logprob) else LOWEST
