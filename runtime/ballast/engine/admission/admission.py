"""Whether the engine accepts a request: how full the queue is, and how long the request would wait in it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ballast._core import sched
from ballast.engine.admission.load_history import PromptShare, ReplyLengths
from ballast.engine.admission.retry_schedule import MAX_RETRY_AFTER_S, RetrySchedule
from ballast.engine.admission.rules import Queue, reason_not_to_wait, reason_to_refuse
from ballast.engine.limits import Limits
from ballast.engine.live import LiveRequest
from ballast.engine.request import Request
from ballast.errors import CapacityError, ContextLengthError

NEW_CLIENT = -1
"""A client without waiting requests."""


class Admission:
    """The load as arriving requests see it. Callers of its methods, except `check_fits`, hold the engine's lock.
    Requests are noted in `prompt_share` and `reply_lengths` by the engine's thread."""

    def __init__(self, limits: Limits, capacity_tokens: int) -> None:
        """`capacity_tokens`: tokens that the KV cache can hold."""
        self.limits = limits
        self.prompt_share = PromptShare()
        self.reply_lengths = ReplyLengths()
        self.retries = RetrySchedule(limits.max_batch_size)
        self.waiting_tokens = 0
        """Prompt tokens of the requests that never ran, those in the inbox included."""
        self._capacity_tokens = capacity_tokens
        self._num_arrived = 0
        """Requests that the scheduler does not know yet."""
        self._num_waiting = self._num_running = 0
        """Requests that the scheduler knows."""
        self._used_tokens = 0
        self._load: sched.QueueState | None = None
        """The load when the last step began or ended, and the requests in the inbox."""
        self._load_taken = 0.0

    def check_fits(self, request: Request) -> None:
        """Raise ContextLengthError for a request that can never be served."""
        prompt, limit = len(request.prompt_ids), self.limits.max_model_tokens
        if prompt + request.sampling.max_tokens > limit:
            raise ContextLengthError(
                limit,
                f"you requested {prompt + request.sampling.max_tokens} tokens ({prompt} in the prompt, "
                f"{request.sampling.max_tokens} for the completion)",
                param="messages",
                advice="Shorten the prompt or lower max_tokens.",
            )

    def check_room(self, priority: int, client: int, count: int, num_tokens: int) -> None:
        """Raise CapacityError if `count` requests with `num_tokens` prompt tokens in total may not wait."""
        # Requests that fill free slots do not count as waiting, so that an idle engine accepts a burst.
        num_waiting = self._num_waiting + self._num_arrived
        num_free = self.limits.max_batch_size - self._num_running
        queue = Queue(num_waiting - num_free, self.waiting_tokens)
        full = reason_to_refuse(queue, count, num_tokens, self.limits.max_queue, self.limits.max_queue_tokens)
        excess_s = 0.0
        limit_s = self.limits.max_queue_wait_s
        if full is None and limit_s > 0 and not (num_free > num_waiting and self._has_blocks(num_tokens)):
            wait_s = self.predicted_wait_s(priority, client, num_tokens, limit_s + MAX_RETRY_AFTER_S)
            full, excess_s = reason_not_to_wait(wait_s, limit_s), wait_s - limit_s
        if full is not None:
            retry_after_s = max(excess_s, self.retries.refuse(time.monotonic(), count))
            raise CapacityError.busy(full, retry_after_s=min(retry_after_s, MAX_RETRY_AFTER_S))

    def arrive(self, live: LiveRequest) -> None:
        """A request was accepted. The scheduler does not know it yet."""
        self._num_arrived += 1
        self.waiting_tokens += live.prompt_tokens
        if self._load is not None:
            self._count_in(self._load, live)

    def take_inbox(self) -> None:
        """The scheduler knows the requests that have arrived from now on."""
        self._num_waiting += self._num_arrived
        self._num_arrived = 0

    def leave_queue(self, live: LiveRequest) -> None:
        """A request was admitted to the batch, or aborted before that."""
        self.waiting_tokens -= live.prompt_tokens

    def note_stats(self, stats: sched.Stats) -> None:
        """The scheduler's numbers have changed."""
        self._num_waiting, self._num_running = stats.waiting, stats.running
        self._used_tokens = stats.used_tokens

    def set_load(self, load: sched.QueueState, taken: float, inbox: Iterable[LiveRequest]) -> None:
        """Use another copy of the scheduler's load, which was made at the time `taken`. `inbox`: the requests that it
        does not know yet."""
        for live in inbox:
            self._count_in(load, live)
        self._load, self._load_taken = load, taken

    def predicted_wait_s(self, priority: int, client: int, num_tokens: int, horizon_s: float) -> float:
        """Seconds until the first step of a request that arrives now; 0 before the first step of all."""
        if self._load is None:
            return 0.0
        return self._load.predicted_wait_s(
            priority,
            client,
            self._computed_tokens(num_tokens),
            self.limits.max_new_tokens,
            horizon_s=horizon_s,
            elapsed_s=time.monotonic() - self._load_taken,
        )

    def _has_blocks(self, num_tokens: int) -> bool:
        """Whether the KV cache has room for a prompt of `num_tokens`, in addition to running and waiting requests."""
        return self._used_tokens + self.waiting_tokens + num_tokens < self._capacity_tokens

    def _computed_tokens(self, num_tokens: int) -> int:
        """The tokens of a prompt that steps will compute, if the prefix cache serves as much of it as of others."""
        return max(1, int(num_tokens * self.prompt_share.value))

    def _count_in(self, load: sched.QueueState, live: LiveRequest) -> None:
        request = live.request
        load.arrive(
            request.priority, request.client, self._computed_tokens(live.prompt_tokens), request.sampling.max_tokens
        )


def prompt_tokens(requests: Sequence[Request]) -> int:
    """Prompt tokens to compute for requests that arrive together: a prompt that they share counts once."""
    return sum(map(len, {request.prompt_ids for request in requests}))
