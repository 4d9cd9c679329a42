"""Logits to tokens, one request at a time.

A request's token depends on its own logits, parameters, history and position alone: the random number for its
n-th token is a function of (seed, n), so neither the rest of the batch nor a preemption can change the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ballast.engine.logprobs import largest
from ballast.engine.request import SamplingParams

# Sorting a whole vocabulary costs milliseconds; nearly always the nucleus lies within this many tokens.
NUCLEUS_GUESS = 1024


class SequenceSampler:
    """Chooses the next token of one sequence and remembers what it has chosen."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], seed: int) -> None:
        self._params = params
        self._seed = seed & (2**64 - 1)  # clients may send negative seeds; Philox takes none
        self._generated: Counter[int] = Counter()
        self._num_generated = 0
        self._seen: set[int] = set(prompt_ids) if params.repetition_penalty != 1.0 else set()

    def next_token(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None) -> int:
        """Choose from `logits` [vocabulary], of the tokens that are `allowed`, and record the choice.

        Raises FloatingPointError when the model produced no finite logit to choose from.
        """
        token = self._choose(self._adjust(logits, allowed))
        self._generated[token] += 1
        self._num_generated += 1
        if self._params.repetition_penalty != 1.0:
            self._seen.add(token)
        return token

    def _adjust(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> NDArray[np.floating]:
        """Penalties, bias, the ban on early stop tokens and on all that is not allowed. Copies only when something
        changes."""
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
        cumulative = np.cumsum(weights)
        threshold = self._uniform() * cumulative[-1]
        index = int(np.searchsorted(cumulative, threshold, side="right"))
        return int(candidates[min(index, len(candidates) - 1)])

    def _candidates(
        self, logits: NDArray[np.floating], highest: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Tokens that survive top-k, then min-p, then top-p, with their unnormalised probabilities."""
        params = self._params
        # Weights are relative to the most probable token, so min-p is a plain threshold.
        weights = np.exp((logits.astype(np.float64) - highest) / params.temperature)
        tokens = np.arange(weights.size, dtype=np.int64)
        if 0 < params.top_k < weights.size:
            tokens = largest(weights, params.top_k)
            weights = weights[tokens]
        if params.min_p > 0.0:
            kept = weights >= params.min_p
            tokens, weights = tokens[kept], weights[kept]
        if params.top_p < 1.0:
            kept_order = _nucleus(weights, params.top_p)
            tokens, weights = tokens[kept_order], weights[kept_order]
        return tokens, weights

    def _uniform(self) -> float:
        """The random number in [0, 1) that belongs to this seed and this position."""
        philox = np.random.Philox(key=self._seed, counter=self._num_generated)
        return float(np.random.Generator(philox).random())


def _within(tokens: set[int] | frozenset[int], vocabulary: int) -> list[int]:
    return [token for token in tokens if token < vocabulary]


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Indices of the smallest set of most probable entries whose share reaches `top_p`, largest first."""
    target = top_p * float(np.sum(weights))
    order = largest(weights, min(NUCLEUS_GUESS, weights.size))
    cumulative = np.cumsum(weights[order])
    if cumulative[-1] < target and order.size < weights.size:
        order = largest(weights, weights.size)
        cumulative = np.cumsum(weights[order])
    return order[: int(np.searchsorted(cumulative, target, side="left")) + 1]
