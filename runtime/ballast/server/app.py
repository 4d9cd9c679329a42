"""The HTTP application: routes, the errors they may raise, and what surrounds them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp

from ballast import __version__
from ballast.errors import CapacityError, EngineDeadError, RequestError
from ballast.server import dialects, exchange, health, page, tokens
from ballast.server.access import Access
from ballast.server.anthropic_reply import AnthropicErrors
from ballast.server.errors import RequestTimeoutError, error_reply
from ballast.server.exchange import Exchange, Record
from ballast.server.job import Job
from ballast.server.json_text import to_json
from ballast.server.limits import ServerLimits
from ballast.server.metrics import Metrics
from ballast.server.middleware import BodyLimit, RequestScope
from ballast.server.numa import NumaProbe
from ballast.server.openai_reply import ChatFormat, Format, Reply, Shape, TextFormat
from ballast.server.openai_request import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    StreamOptions,
    parse_body,
)
from ballast.server.openapi import describes, document
from ballast.server.port import EnginePort
from ballast.server.preparation import Preparation
from ballast.server.prepare import Preparer
from ballast.server.reply_schemas import ChatCompletion, ModelCard, ModelList, TextCompletion
from ballast.server.wanted import ClientGoneError

Kind = TypeVar("Kind", ChatCompletionRequest, CompletionRequest)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Kind]):
    """A request that is ready for the engine."""

    model: str
    """Its name for the reply."""
    body: Kind
    job: Job


@dataclass(slots=True)
class Service:
    """What the handlers share."""

    engine: EnginePort
    preparer: Preparer
    metrics: Metrics
    numa: NumaProbe
    preparation: Preparation
    """Where templates and tokenizers run; never the event loop."""
    model_names: Sequence[str]
    """The first is the one in replies to requests that name none of them."""
    max_body_bytes: int
    leaving: asyncio.Future[None]
    """Done when requests that still run are to be failed."""
    access: Access = field(default_factory=Access)
    limits: ServerLimits = field(default_factory=ServerLimits)
    strict_model_name: bool = False
    request_timeout_s: float = 0.0
    reasoning_fields: Sequence[str] = ("reasoning_content",)
    """Where chat completions carry the reasoning."""
    created: int = field(default_factory=lambda: int(time.time()))

    def model_name(self, asked: str | None) -> str:
        """The name for the reply. Raises RequestError (404) in strict mode when it is not one of ours."""
        if asked is None:
            return self.model_names[0]
        if self.strict_model_name and asked not in self.model_names:
            raise self.no_such_model(asked)
        return asked

    def no_such_model(self, name: str) -> RequestError:
        """The refusal of a name that is not one of ours."""
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
        return await self.on_body(request, record, lambda data: self._prepare(kind, data, to_job))

    async def on_body(self, request: Request, record: Record, work: Callable[[bytes], Result]) -> Result:
        """Read the body, then do `work` with it off the event loop. Raises as `Preparation.run` does."""
        return await self.preparation.run(request, record, work)

    def exchange(self, record: Record, job: Job, reply: exchange.Reply, *, stream: bool) -> Exchange:
        """The response that runs `job` and says what comes of it by `reply`."""
        return Exchange(
            self.engine,
            self.preparer.text.tokenizer,
            job,
            reply,
            record,
            stream=stream,
            timeout_s=self.request_timeout_s,
            leaving=self.leaving,
            keep_alive_s=self.limits.keep_alive_s,
        )

    def _prepare(self, kind: type[Kind], data: bytes, to_job: Callable[[Kind], Job]) -> Prepared[Kind]:
        body = parse_body(kind, data, self.engine.limits.max_model_tokens)
        return Prepared(self.model_name(body.model), body, to_job(body))


EXPECTED_ERRORS = (RequestError, CapacityError, EngineDeadError, RequestTimeoutError, HTTPException)

api = APIRouter()


def api_routers(*, with_admin: bool) -> tuple[APIRouter, ...]:
    """What the API's port serves. `with_admin`: health, metrics and debugging as well, for want of a port of theirs."""
    return (
        api,
        dialects.router,
        tokens.router,
        page.router,
        health.everywhere,
        *((health.admin,) if with_admin else ()),
    )


def admin_routers() -> tuple[APIRouter, ...]:
    """What the admin port serves."""
    return (health.everywhere, health.admin)


def create_app(service: Service, *, with_admin: bool = True) -> ASGIApp:
    """The application of the API's port."""
    return _surround(api_app(api_routers(with_admin=with_admin), service.access.root_path), service, service.access)


def create_admin_app(service: Service) -> ASGIApp:
    """The application of the admin port."""
    return _surround(api_app(admin_routers()), service, Access())


def api_app(routers: Sequence[APIRouter], root_path: str = "") -> FastAPI:
    """Routes and the errors that they may raise; without a service, good for its description alone."""
    app = FastAPI(
        title="Ballast",
        version=__version__,
        redirect_slashes=False,
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        servers=[{"url": root_path}] if root_path else None,
        exception_handlers={
            **dict.fromkeys((ClientDisconnect, ClientGoneError), _note_departure),
            **dict.fromkeys((*EXPECTED_ERRORS, Exception), _answer_error),
        },
    )
    app.openapi = lru_cache(maxsize=1)(lambda: document(app))  # type: ignore[method-assign]  # as FastAPI advises
    for router in routers:
        app.include_router(router)
    return app


def _surround(app: FastAPI, service: Service, access: Access) -> ASGIApp:
    app.state.service = service
    limits = service.limits
    return RequestScope(
        AnthropicErrors(
            access.guard(BodyLimit(app, service.max_body_bytes, limits.body_timeout_s, limits.whole_body_timeout_s)),
            access.root_path,
        ),
        service.metrics.count_request,
    )


@api.post("/v1/chat/completions", **describes(ChatCompletion, body=ChatCompletionRequest, streams=True))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service, record = _begin(request, "chat_completions")
    ready = await service.prepare(request, record, ChatCompletionRequest, service.preparer.chat)
    return _exchange(service, record, ready, "chatcmpl", ChatFormat(service.reasoning_fields))


@api.post("/v1/completions", **describes(TextCompletion, body=CompletionRequest, streams=True))
async def completions(request: Request) -> Response:
    """Continue a text."""
    service, record = _begin(request, "completions")
    ready = await service.prepare(request, record, CompletionRequest, service.preparer.completion)
    return _exchange(service, record, ready, "cmpl", TextFormat())


@api.get("/v1/models", **describes(ModelList))
@api.get("/v1/models/", include_in_schema=False)
async def list_models(request: Request) -> Response:
    """The names under which the model is served."""
    service, _ = _begin(request, "models")
    return _json({"object": "list", "data": [_model(service, name) for name in service.model_names]})


@api.get("/v1/models/{name:path}", **describes(ModelCard))
async def show_model(request: Request, name: str) -> Response:
    """One of the names."""
    service, _ = _begin(request, "models")
    if name not in service.model_names:
        raise service.no_such_model(name)
    return _json(_model(service, name))


def _begin(request: Request, endpoint: str) -> tuple[Service, Record]:
    record: Record = request.state.record
    record.endpoint = endpoint
    return request.app.state.service, record


def _exchange(service: Service, record: Record, ready: Prepared[Any], prefix: str, format_: Format) -> Exchange:
    tokenizer = service.preparer.text.tokenizer
    shape = shape_of(ready.body, ready.job, has_vocabulary=tokenizer.has_vocabulary)
    reply_id = f"{prefix}-{uuid.uuid4().hex}"
    reply = Reply(reply_id, int(time.time()), ready.model, format_, shape, tokenizer.token_bytes)
    return service.exchange(record, ready.job, reply, stream=bool(ready.body.stream))


def shape_of(body: GenerationRequest, job: Job, *, has_vocabulary: bool) -> Shape:
    """What the reply is to show besides the text; token ids always where they have no text."""
    options = body.stream_options or StreamOptions()
    return Shape(
        num_choices=job.num_choices,
        logprobs=job.sampling.logprobs is not None,
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        timings_per_token=bool(body.timings_per_token),
        token_ids=bool(body.return_token_ids) or not has_vocabulary,
    )


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "ballast",
        "max_model_len": service.engine.limits.max_model_tokens,
    }


def _json(value: Any) -> Response:
    return Response(to_json(value), media_type="application/json")


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        error.detail = f"{error.detail}: {request.method} {request.url.path}"
    return error_reply(error).response()


async def _note_departure(request: Request, _: Exception) -> Response:
    """The client left before there was anything to answer; nobody reads this response."""
    request.state.record.outcome = "client_gone"
    return Response(status_code=499)
