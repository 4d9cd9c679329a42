"""The compiled sampler with the interface of the NumPy one, so that tests can compare them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.engine.request import SamplingParams
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.engine.sampling.sampler import SampledRow, ScoredRow, StepSampler, sequence_sampler
from ballast.host.isa import chosen_isa

ONE_THREAD = StepSampler(kernels.ThreadPool(1), chosen_isa())


class CompiledSampler:
    """Samples one sequence, one row of logits at a time."""

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int], seed: int, step: StepSampler = ONE_THREAD
    ) -> None:
        self._state = sequence_sampler(params, prompt_ids, seed)
        self._step = step

    def next_token(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None) -> int:
        """Choose among the `allowed` tokens by `logits` [vocabulary], and record the choice. Raises
        FloatingPointError."""
        mask = None if allowed is None else np.packbits(allowed, bitorder="little")
        (token,) = self._step.sample(logits[None], [SampledRow(0, self._state, mask)])
        if isinstance(token, FloatingPointError):
            raise token
        return token


def compiled_logprobs(
    logits: NDArray[np.float32], token_id: int, num_top: int, step: StepSampler = ONE_THREAD
) -> TokenLogprobs:
    """Log probabilities of `token_id` and of the `num_top` most probable tokens, from `logits` [vocabulary]. Raises
    FloatingPointError."""
    (scores,) = step.score(logits[None], [ScoredRow(0, token_id, num_top)])
    if isinstance(scores, FloatingPointError):
        raise scores
    return scores
