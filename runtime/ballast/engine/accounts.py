"""Accounts for what each step did to the requests that the engine holds."""

from __future__ import annotations

import logging
import threading
import time

from ballast.engine.admission.admission import Admission
from ballast.engine.core import StepResult, TokenEvent
from ballast.engine.live import LiveRequest
from ballast.engine.observer import EngineObserver
from ballast.engine.publishing import Publisher
from ballast.engine.request import FinishReason
from ballast.engine.stream import Deliveries
from ballast.errors import RequestError

log = logging.getLogger(__name__)


class Accounts:
    """The requests that the engine's thread holds. Only that thread changes them."""

    def __init__(
        self, admission: Admission, publisher: Publisher, observer: EngineObserver, lock: threading.Lock
    ) -> None:
        """`lock` guards `admission`."""
        self.live: dict[int, LiveRequest] = {}
        """By sequence."""
        self._admission = admission
        self._publisher = publisher
        self._observer = observer
        self._lock = lock

    def settle(self, result: StepResult) -> tuple[Deliveries, int]:
        """Account for a step. Returns its outputs and the number of requests that have left the batch."""
        now = time.monotonic()
        self._observer.on_step(result.kind, now - result.started, result.num_tokens)
        for seq, cached_tokens in result.admitted:
            self._admit(self.live[seq], result.started, cached_tokens)
        deliveries = Deliveries()
        for prefill in result.prefilled:
            live = self.live[prefill.seq]
            output = live.output(now, prompt_logprobs=prefill.scores, computed_tokens=prefill.computed_tokens)
            deliveries.add(live.stream, output)
        num_ended = len(result.failed)
        for event in result.events:
            self._take_token(event, now, deliveries)
            num_ended += event.finish_reason is not None
        for seq, error in result.failed:
            live = self.live.pop(seq)
            log.error("nothing to sample", extra={"request_id": live.request.id, "error": str(error)})
            delivered = error if isinstance(error, RequestError) else RequestError(str(error), status=500)
            deliveries.add(live.stream, delivered)
        self._publisher.num_generated += len(result.events)
        for seq in result.preempted:
            log.info("preempted", extra={"request_id": self.live[seq].request.id})
        return deliveries, num_ended

    def leave_queue(self, live: LiveRequest) -> None:
        """A request was admitted for the first time, or was aborted before that."""
        if not live.admitted:
            with self._lock:
                self._admission.leave_queue(live)

    def _admit(self, live: LiveRequest, started: float, cached_tokens: int) -> None:
        self.leave_queue(live)
        live.admitted, live.cached_tokens = started, cached_tokens
        if live.leader is None:
            self._admission.prompt_share.note(live.prompt_tokens, cached_tokens)
        self._publisher.num_prompt_tokens += len(live.request.prompt_ids)

    def _take_token(self, event: TokenEvent, now: float, deliveries: Deliveries) -> None:
        live = self.live[event.seq]
        if live.num_generated == 0:
            self._observer.on_first_token(now - live.submitted, live.admitted - live.submitted)
        else:
            self._observer.on_inter_token(now - live.last_token)
        live.last_token = now
        live.num_generated += 1
        num_prompt = len(live.request.prompt_ids)
        output = live.output(
            now,
            token_ids=(event.token_id,),
            finish_reason=event.finish_reason,
            logprobs=() if event.logprobs is None else (event.logprobs,),
            computed_tokens=num_prompt,
        )
        deliveries.add(live.stream, output)
        if event.finish_reason is not None:
            self._admission.reply_lengths.note(live.num_generated, stopped=event.finish_reason is FinishReason.STOP)
            self._observer.on_finish(now - live.submitted, event.finish_reason, num_prompt, live.num_generated)
            del self.live[event.seq]
