"""Logits to tokens, and log probabilities.

Logits are [R, V]: rows of a step, V the vocabulary; calls name the rows that they are about. A row is computed by one
thread of the pool, so results depend neither on the number of threads nor on the other rows, and they are the same bits
under every instruction set. Wrong shapes and types raise ValueError naming the argument.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import _F32 as F32
from . import _I32 as I32
from . import PybindObject
from .kernels import ThreadPool

class SequenceSampler(PybindObject):
    """How one sequence's tokens are chosen, and what it has chosen."""

    def __init__(
        self,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        presence_penalty: float,
        frequency_penalty: float,
        repetition_penalty: float,
        min_tokens: int,
        stop_tokens: I32,
        logit_bias: Sequence[tuple[int, float]],
        seed: int,
        prompt: I32,
    ) -> None:
        """`temperature` 0 is greedy; `top_k` 0 keeps every token. Penalties of presence and frequency count chosen
        tokens, that of repetition `prompt` too. Stop tokens are not chosen before `min_tokens`, unless a mask leaves no
        other. The n-th draw is that of NumPy's Philox(key=seed, counter=n); `seed` fits in 64 bits without a sign."""

class Sampler(PybindObject):
    """Samples and scores on the threads of a pool."""

    def __init__(self, pool: ThreadPool, *, isa: str) -> None:
        """ValueError when `isa` is not usable here."""

    def sample(
        self,
        logits: F32,
        *,
        rows: I32,
        sequences: Sequence[SequenceSampler],
        allowed: Sequence[NDArray[np.uint8] | None],
    ) -> tuple[I32, NDArray[np.float64]]:
        """The next token of each of `sequences` from its row, and the highest logit there, both [rows]; sequences
        record their tokens. `allowed` has a mask per row: bit i % 8 of byte i / 8 for token i, or None for every token.
        If the highest logit after penalties, bias and mask is not finite, no token is chosen or recorded, and the
        token is one with that logit. Releases the GIL. ValueError for a sequence given twice; IndexError for a row, or
        a bias of a token, that there is not."""

    def score(
        self, logits: F32, *, rows: I32, token_ids: I32, num_top: I32
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], I32, NDArray[np.float64]]:
        """For each of `rows` the highest logit, the log probability of its token, and the tokens [rows, most] and log
        probabilities [rows, most] of its `num_top` most likely ones: the most likely first, of equal ones the lower id;
        entries beyond its own number, and beyond V, are -1 and 0. Where the highest logit is not finite, the rest means
        nothing. Releases the GIL. IndexError for a row or token that there is not."""
