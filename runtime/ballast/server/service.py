"""The state that routes share: the model, the engine, and the steps from a body to a reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from ballast.config.whole_range import WholeRange
from ballast.generation.endpoints import Endpoints, Prepared
from ballast.generation.engine_port import EnginePort
from ballast.generation.priority import granted
from ballast.prepared_model import PreparedModel
from ballast.server.limits import ServerLimits
from ballast.server.requests.record import Record
from ballast.server.requests.response import GenerationResponse, ResponseContext
from ballast.server.requests.tokenize_queue import TokenizeQueue
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.ignored_log import IgnoredFieldsLog

Result = TypeVar("Result")
Work = Callable[[bytes, IgnoredFields], Result]
"""Processes a body off the event loop, and records fields that have no effect."""


@dataclass(frozen=True, slots=True)
class Service:
    """The state that all handlers share."""

    model: PreparedModel
    engine: EnginePort
    endpoints: Endpoints
    tokenize_queue: TokenizeQueue
    metrics: Metrics
    numa: NumaProbe
    limits: ServerLimits
    shutting_down: asyncio.Future[None]
    """Completed when the server must fail the requests that still run."""
    created: int = field(default_factory=lambda: int(time.time()))
    ignored_log: IgnoredFieldsLog = field(default_factory=IgnoredFieldsLog)

    def ended(self, record: Record) -> None:
        """Count a request that has ended, and its ignored fields."""
        if record.is_counted:
            self.metrics.count_request(record.endpoint, record.outcome)
        if record.ignored:
            self.metrics.count_ignored(record.ignored.count)
            self.ignored_log.note(record.ignored)

    async def prepare(self, request: Request, record: Record, work: Work[Result], *, is_chat: bool) -> Result:
        """Read, check and tokenise the body of a generation request. `is_chat`: `work` may render a template.

        A request that the engine would reject is not tokenised. Raises as `on_body` does.
        """
        async with self.tokenize_queue.entered(request, record) as queued:
            body = await queued.read()
            return await queued.work(is_chat, self._prepare, record, work, body)

    async def on_body(self, request: Request, record: Record, work: Work[Result], *, is_chat: bool = False) -> Result:
        """Read the body of another request, and return the result of `work`.

        Raises the errors of `TokenizeQueue`, `QueuedRequest` and `work`.
        """
        async with self.tokenize_queue.entered(request, record) as queued:
            body = await queued.read()
            return await queued.work(is_chat, work, body, record.ignored)

    def respond(self, record: Record, prepared: Prepared) -> GenerationResponse:
        """The response that runs the job and writes its result. Raises RequestError for a priority outside the client's
        range."""
        job = granted(prepared, record.ignored, self._allowed_priorities(record), self._client_of(record))
        if job.lowered_max_tokens is not None:
            record.lowered_max_tokens = job.lowered_max_tokens
            self.metrics.count_lowered()
        context = ResponseContext(
            self.engine,
            self.model.text.tokenizer,
            self.shutting_down,
            self.model.config.server.request_timeout_s,
            self.limits.keep_alive_s,
        )
        return GenerationResponse(context, job, prepared, record)

    def _prepare(self, record: Record, work: Work[Result], body: bytes) -> Result:
        if self._allowed_priorities(record) is None:
            self.engine.check_room(0, self._client_of(record))
        return work(body, record.ignored)

    def _allowed_priorities(self, record: Record) -> WholeRange | None:
        """The priorities that the client may request: those of its key, or the server's; None: the field is
        ignored."""
        return record.client_priority or self.model.config.scheduling.client_priority

    def _client_of(self, record: Record) -> int:
        """The number that identifies the request's client for fair-share rounds; 0 for all clients if the queue is
        first come, first served."""
        return record.client if self.model.config.scheduling.queue_policy == "fair" else 0
