"""One live sequence, beyond what the scheduler tracks: how its tokens are chosen and what is reported of them."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
from numpy.typing import NDArray

from ballast.engine.constraint import ConstraintState, broken_grammar
from ballast.engine.logprobs import TokenLogprobs, token_logprobs
from ballast.engine.request import Request
from ballast.engine.sampler import SequenceSampler
from ballast.errors import RequestError


class Sequence:
    """State of one sequence that a preemption does not touch."""

    def __init__(self, request: Request, seed: int) -> None:
        constraint = request.sampling.constraint
        self.request = request
        self.constraint: ConstraintState | None = constraint.start() if constraint else None
        self._sampler = SequenceSampler(request.sampling, request.prompt_ids, seed)
        self._num_scored = 1 if request.score_prompt else len(request.prompt_ids)  # no token precedes the first

    def unscored(self, begin: int, end: int) -> range:
        """Those positions in begin…end whose logits score a prompt token that has no score yet."""
        return range(max(begin, self._num_scored - 1), min(end, len(self.request.prompt_ids) - 1))

    def score(self, rows: Rows[NDArray[np.float32]]) -> tuple[TokenLogprobs, ...]:
        """Score the next prompt tokens. `rows` are the logits at the positions that `unscored` returned.

        Raises FloatingPointError.
        """
        first = self._num_scored
        self._num_scored += len(rows)
        ids = self.request.prompt_ids[first : self._num_scored]
        num_top = self.request.sampling.logprobs or 0
        return tuple(token_logprobs(row, token_id, num_top) for row, token_id in zip(rows, ids, strict=True))

    def next_token(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> int:
        """Choose the next token and advance the grammar by it. Raises FloatingPointError, RequestError."""
        token_id = self._sampler.next_token(logits, allowed)
        if self.constraint is not None and token_id not in self.request.sampling.stop_token_ids:
            try:
                self.constraint.accept(token_id)
            except RequestError:
                raise
            except BaseException as error:
                raise broken_grammar(error) from error
        return token_id

    def logprobs_of(self, logits: NDArray[np.float32], token_id: int) -> TokenLogprobs | None:
        """The log probabilities that the request asks for; None if it asks for none."""
        num_top = self.request.sampling.logprobs
        return None if num_top is None else token_logprobs(logits, token_id, num_top)
