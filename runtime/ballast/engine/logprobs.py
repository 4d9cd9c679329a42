"""Log probabilities in the model's own distribution: before temperature, penalties, bias and masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot express."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token at one position, and the most probable tokens there."""

    token_id: int
    logprob: float
    """Natural logarithm, at least LOWEST."""
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob) of the most probable tokens, most probable first; ties go to the lower id."""


def token_logprobs(logits: NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs:
    """Log probabilities of `token_id` and of the `num_top` most probable tokens, from `logits` [vocabulary].

    Raises FloatingPointError when the largest logit is not a finite number.
    """
    highest = float(np.max(logits))
    if not np.isfinite(highest):  # of NaN and anything, the maximum is NaN
        raise FloatingPointError(f"the model produced logits whose largest is {highest}; they have no probabilities")
    log_sum = highest + float(np.log(np.sum(np.exp(logits - highest, dtype=np.float32), dtype=np.float64)))
    top = largest(logits, min(num_top, logits.size)) if num_top else ()
    return TokenLogprobs(
        token_id,
        _bounded(float(logits[token_id]) - log_sum),
        tuple((int(token), _bounded(float(logits[token]) - log_sum)) for token in top),
    )


def has_finite_peak(logits: NDArray[np.float32]) -> bool:
    """Whether a token can be chosen by these logits [vocabulary]: none is NaN, and the largest is finite."""
    return bool(np.isfinite(np.max(logits)))


def largest(values: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest values, largest first; ties go to the lower index."""
    threshold = np.partition(values, values.size - count)[values.size - count]
    at_least = np.flatnonzero(values >= threshold)
    order = np.argsort(-values[at_least], kind="stable")
    return at_least[order[:count]]


def _bounded(logprob: float) -> float:
    # Rounding may lift the logarithm of a probability near 1 above 0.
    return max(LOWEST, min(0.0, logprob)) if np.isfinite(logprob) else LOWEST
