"""What the routes share: the engine, the model's names, and the steps from a body to a reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from starlette.requests import Request

from ballast.config.whole_range import WholeRange
from ballast.errors import RequestError
from ballast.generation.engine_port import EnginePort
from ballast.generation.job import Job
from ballast.generation.request_builder import RequestBuilder
from ballast.model.facts import ModelFacts
from ballast.server.http.access import Access
from ballast.server.limits import ServerLimits
from ballast.server.requests.priority import granted_priority
from ballast.server.requests.record import Record
from ballast.server.requests.response import EVENT_STREAM, Framing, GenerationResponse, Reply, ResponseContext
from ballast.server.requests.tokenize_queue import TokenizeQueue
from ballast.server.telemetry.ignored_log import IgnoredFieldsLog
from ballast.server.telemetry.metrics import Metrics
from ballast.server.telemetry.numa_report import NumaProbe
from ballast.server.telemetry.tracing import Tracer
from ballast.wire.field_names import NO_FIELDS, client_name
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest, parse_body

Kind = TypeVar("Kind", ChatCompletionRequest, CompletionRequest)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Kind]):
    """A request that is checked and ready for the engine."""

    model: str
    """Its name for the reply."""
    body: Kind
    job: Job


@dataclass(slots=True)
class Service:
    """The state that all handlers share."""

    engine: EnginePort
    request_builder: RequestBuilder
    metrics: Metrics
    numa: NumaProbe
    tokenize_queue: TokenizeQueue
    """Runs templates and tokenizers off the event loop."""
    model_names: Sequence[str]
    """At least one. Replies to requests that name no model have the first."""
    max_body_bytes: int
    shutting_down: asyncio.Future[None]
    """Done once the server must fail the requests that still run."""
    access: Access
    admin_access: Access
    limits: ServerLimits = field(default_factory=ServerLimits)
    facts: ModelFacts = field(default_factory=ModelFacts)
    device: str = "cpu"
    """Where the model is computed, once `auto` is decided: cpu, cuda or cuda:N."""
    planned_bytes: Mapping[str, int] = field(default_factory=dict)
    """What the plan needs, by where: `host`, and `device` where there is one; empty where nothing was planned."""
    tracer: Tracer | None = None
    """Makes spans of requests; None: there are none."""
    strict_model_name: bool = False
    request_timeout_s: float = 0.0
    refuse_unknown_fields: bool = False
    clients_take_turns: bool = True
    """Whether clients that wait take turns; False: all are taken for one."""
    client_priority: WholeRange | None = None
    """The priorities that clients may ask for whose key has no range of its own; None: the field is ignored."""
    reasoning_fields: Sequence[str] = ("reasoning_content",)
    """The fields of chat completions that carry the reasoning."""
    created: int = field(default_factory=lambda: int(time.time()))
    ignored_log: IgnoredFieldsLog = field(default_factory=IgnoredFieldsLog)

    def ended(self, record: Record) -> None:
        """Count a request that has ended, and what was ignored of it."""
        if record.is_counted:
            self.metrics.count_request(record.endpoint, record.outcome)
        if record.ignored:
            self.metrics.count_ignored(record.ignored.count)
            self.ignored_log.note(record.ignored)

    def model_name(self, asked: str | None) -> str:
        """The name for the reply. In strict mode, raises RequestError (404) if `asked` is not a name of the model."""
        if asked is None:
            return self.model_names[0]
        if self.strict_model_name and asked not in self.model_names:
            raise self.no_such_model(asked)
        return asked

    def no_such_model(self, name: str) -> RequestError:
        """The error for a name that the model does not have."""
        return RequestError(
            f"The model {name!r} does not exist; this server has {', '.join(self.model_names)}",
            param="model",
            code="model_not_found",
            status=404,
        )

    async def prepare(
        self, request: Request, record: Record, kind: type[Kind], to_job: Callable[[Kind], Job]
    ) -> Prepared[Kind]:
        """Read the body, then check and tokenise it. Raises like `on_body`."""
        is_chat = kind is ChatCompletionRequest
        return await self.on_body(
            request,
            record,
            lambda data: self._prepare(kind, data, to_job, record.ignored),
            is_chat=is_chat,
            generates=True,
        )

    async def on_body(
        self,
        request: Request,
        record: Record,
        work: Callable[[bytes], Result],
        *,
        is_chat: bool = False,
        generates: bool = False,
    ) -> Result:
        """Read the body, and return `work(body)`, which runs off the event loop. `is_chat`: it may render a template.
        `generates`: it asks for a reply, so it is not worked on where the engine would refuse it anyway.

        Raises as `TokenizeQueue.run` does, and CapacityError.
        """

        def checked(data: bytes) -> Result:
            if generates and record.client_priority is None and self.client_priority is None:
                self.engine.check_room(0, self._turn_of(record))
            return work(data)

        return await self.tokenize_queue.run(request, record, checked, is_chat=is_chat)

    def respond(
        self,
        record: Record,
        job: Job,
        reply: Reply,
        *,
        stream: bool,
        names: Mapping[str, str] = NO_FIELDS,
        framing: Framing = EVENT_STREAM,
    ) -> GenerationResponse:
        """The response that runs `job` and writes its result by `reply`. `names`: the client's, for what it is told of
        its fields (`client_field_names`). `framing`: how a stream is sent. Raises RequestError for a priority that the
        client may not ask for."""
        allowed = record.client_priority or self.client_priority
        if job.priority and allowed is None:
            record.ignored.add("priority")
        for field_ in job.unheeded:
            record.ignored.add(client_name(field_, names))
        if job.lowered_max_tokens is not None:
            record.lowered_max_tokens = job.lowered_max_tokens
            self.metrics.count_lowered()
        job = replace(job, priority=granted_priority(job.priority, allowed), client=self._turn_of(record))
        context = ResponseContext(
            self.engine,
            self.request_builder.text.tokenizer,
            self.shutting_down,
            self.request_timeout_s,
            self.limits.keep_alive_s,
        )
        return GenerationResponse(context, job, reply, record, stream=stream, framing=framing)

    def _turn_of(self, record: Record) -> int:
        """The client for whom a request takes its turn."""
        return record.client if self.clients_take_turns else 0

    def _prepare(
        self, kind: type[Kind], data: bytes, to_job: Callable[[Kind], Job], ignored: IgnoredFields
    ) -> Prepared[Kind]:
        body = parse_body(kind, data, self.engine.limits.max_model_tokens, ignored)
        return Prepared(self.model_name(body.model), body, to_job(body))
