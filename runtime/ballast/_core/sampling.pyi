"""Samples tokens from logits, and computes log probabilities.

Logits are [R, V]: R rows of a step, V the vocabulary; the argument `rows` selects rows. One thread of the pool computes
a row, so results depend neither on the number of threads nor on the other rows, and they are bitwise equal for all
instruction sets. Wrong shapes and types raise ValueError naming the argument.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import _F32 as F32
from . import _I32 as I32
from . import PybindObject
from .kernels import ThreadPool

class SequenceSampler(PybindObject):
    """The sampling parameters of one sequence, and its sampled tokens."""

    def __init__(
        self,
        *,
        stop_tokens: I32,
        logit_bias: Sequence[tuple[int, float]],
        seed: int,
        prompt: I32,
        **numbers: float,
    ) -> None:
        """`numbers` are the fields that `visit_numbers` of csrc/sampling/sequence_sampler.h lists, all of them; others
        raise TypeError. `temperature` 0 is greedy; `top_k` 0 keeps every token. Presence and frequency penalties count
        sampled tokens; the repetition penalty also counts `prompt`. Stop tokens are not sampled before `min_tokens`,
        unless a mask allows no other token. The n-th draw is that of NumPy's Philox(key=seed, counter=n); `seed` is an
        unsigned 64-bit integer."""

class Sampler(PybindObject):
    """Samples and scores on the threads of a pool."""

    def __init__(self, pool: ThreadPool, *, isa: str) -> None:
        """Raises ValueError if this machine does not support `isa`."""

    def sample(
        self,
        logits: F32,
        *,
        rows: I32,
        sequences: Sequence[SequenceSampler],
        allowed: Sequence[NDArray[np.uint8] | None],
    ) -> tuple[I32, NDArray[np.float64]]:
        """Sample the next token of each of `sequences` from its row. Returns the tokens and the highest logit of each
        row, both [rows]; sequences record their tokens. `allowed` has one mask per row: bit i % 8 of byte i / 8 for
        token i, or None to allow every token. If the highest logit after penalties, bias and mask is not finite, no
        token is sampled or recorded, and the returned token is one with that logit. Releases the GIL. Raises ValueError
        if a sequence is passed twice, and IndexError for a row, or a token with a bias, that does not exist."""

    def score(
        self, logits: F32, *, rows: I32, token_ids: I32, num_top: I32
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], I32, NDArray[np.float64]]:
        """For each of `rows`, returns the highest logit, the log probability of its token, and the tokens [rows, most]
        and log probabilities [rows, most] of its `num_top` most likely tokens, in descending order; ties go to the
        lower id. Entries beyond a row's num_top, and beyond V, are -1 and 0. If the highest logit is not finite, the
        other values are undefined. Releases the GIL. Raises IndexError for a row or token that does not exist."""
