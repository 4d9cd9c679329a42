"""One live sequence, beyond what the scheduler tracks: how its tokens are chosen and which results are reported."""

from __future__ import annotations

from ballast.engine.request import Request
from ballast.engine.sampling.constraint import ConstraintState, broken_grammar
from ballast.engine.sampling.sampler import sequence_sampler
from ballast.errors import RequestError


class Sequence:
    """State of one sequence that a preemption does not change."""

    def __init__(self, request: Request, seed: int) -> None:
        constraint = request.sampling.constraint
        self.request = request
        self.constraint: ConstraintState | None = constraint.start() if constraint else None
        self.sampler = sequence_sampler(request.sampling, request.prompt_ids, seed)
        self._num_scored = (
            len(request.prompt_ids) if request.prompt_logprobs is None else 1
        )  # no token precedes the first

    def unscored(self, begin: int, end: int) -> range:
        """The positions in begin…end whose logits score a prompt token that has no score yet."""
        return range(max(begin, self._num_scored - 1), min(end, len(self.request.prompt_ids) - 1))

    def take_unscored(self, num: int) -> tuple[int, ...]:
        """The next `num` prompt tokens that have no score yet, which the caller scores now."""
        first = self._num_scored
        self._num_scored += num
        return self.request.prompt_ids[first : self._num_scored]

    def accept(self, token_id: int) -> None:
        """Advance the grammar by a token that was sampled. Raises RequestError."""
        if self.constraint is None or token_id in self.request.sampling.stop_token_ids:
            return
        try:
            self.constraint.accept(token_id)
        except RequestError:
            raise
        except BaseException as error:
            raise broken_grammar(error) from error
