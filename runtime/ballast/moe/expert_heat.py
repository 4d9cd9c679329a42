"""How much the routed experts are used at present: counts of tokens with exponential decay. Pure.

The mean life of a count is given in tokens rather than seconds, so that an idle server forgets nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LIFE_TOKENS = 1024
"""Mean life of a count, in tokens: some seconds of a busy server, and long enough that equally used experts have
similar counts."""


class ExpertHeat:
    """The decayed counts of some layers. Heat divided by LIFE_TOKENS is about the fraction of tokens that select an
    expert."""

    def __init__(self, heat: NDArray[np.float64], num_used: int) -> None:
        """`heat` [layers, E]: the initial values, which are copied. `num_used`: experts that a token selects in each
        layer."""
        self.values = heat.copy()
        self._num_used = num_used

    def add(self, counts: NDArray[np.integer]) -> None:
        """Add `counts` [layers, E]: tokens that have selected each expert since the last call. A layer without counts
        does not change."""
        num_tokens = counts.sum(1) / self._num_used
        self.values *= np.exp(-num_tokens / LIFE_TOKENS)[:, None]
        self.values += counts


def heat_of_uses(uses: NDArray[np.int64], num_used: int) -> NDArray[np.float64]:
    """The heat [layers, E] after many tokens that select experts as often as `uses` [layers, E] says. With fewer uses
    than LIFE_TOKENS tokens make, the uses themselves."""
    num_tokens = uses.sum(1, keepdims=True) / num_used
    heat: NDArray[np.float64] = uses * np.minimum(1.0, LIFE_TOKENS / np.maximum(num_tokens, 1.0))
    return heat


def uses_of_heat(heat: NDArray[np.float64]) -> NDArray[np.int64]:
    """The heat in whole numbers of uses, for a file."""
    return np.rint(heat).astype(np.int64)


def num_tokens_of(heat: NDArray[np.float64], num_used: int) -> int:
    """Number of tokens that the heat [layers, E] represents."""
    return math.ceil(float(heat.sum(1).max(initial=0.0)) / num_used)
