"""Log probabilities in the model's own distribution: before temperature, penalties, bias and masks."""

from __future__ import annotations

from dataclasses import dataclass

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
