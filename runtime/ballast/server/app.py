"""The HTTP application: routes, the errors they may raise, and what surrounds them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp

from ballast import __version__
from ballast.errors import CapacityError, EngineDeadError, RequestError
from ballast.server import health
from ballast.server.errors import RequestTimeoutError, error_reply
from ballast.server.exchange import Exchange, Record
from ballast.server.metrics import Metrics
from ballast.server.middleware import BodyLimit, RequestScope
from ballast.server.numa import NumaProbe
from ballast.server.openai_reply import ChatReply, Reply, TextReply, to_json
from ballast.server.openai_request import ChatCompletionRequest, CompletionRequest, GenerationRequest, parse_body
from ballast.server.port import EnginePort
from ballast.server.prepare import Job, Preparer

RETRY_WHILE_PREPARING_S = 1


@dataclass(slots=True)
class Service:
    """What the handlers share."""

    engine: EnginePort
    preparer: Preparer
    metrics: Metrics
    numa: NumaProbe
    executor: Executor
    """Where templates and tokenizers run; never the event loop."""
    model_names: Sequence[str]
    """The first is the one in replies to requests that name none of them."""
    strict_model_name: bool = False
    request_timeout_s: float = 0.0
    max_body_bytes: int = 32 << 20
    created: int = field(default_factory=lambda: int(time.time()))
    num_preparing: int = 0

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

    async def prepare(self, prepare: Callable[[Kind], Job], body: Kind) -> Job:
        """Run `prepare` off the event loop. Raises CapacityError when too many wait for that already."""
        limit = self.engine.limits.max_queue
        if self.num_preparing >= limit:
            raise CapacityError(
                f"{self.num_preparing} requests wait to be tokenised; try again in {RETRY_WHILE_PREPARING_S} s",
                retry_after_s=RETRY_WHILE_PREPARING_S,
            )
        self.num_preparing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.executor, prepare, body)
        finally:
            self.num_preparing -= 1


Kind = TypeVar("Kind", ChatCompletionRequest, CompletionRequest)

EXPECTED_ERRORS = (RequestError, CapacityError, EngineDeadError, RequestTimeoutError, HTTPException)

api = APIRouter()


def create_app(service: Service) -> ASGIApp:
    """The whole application around one engine."""
    app = FastAPI(
        title="Ballast",
        version=__version__,
        redirect_slashes=False,
        openapi_url=None,
        exception_handlers={
            ClientDisconnect: _note_departure,
            **dict.fromkeys((*EXPECTED_ERRORS, Exception), _answer_error),
        },
    )
    app.state.service = service
    app.include_router(api)
    app.include_router(health.router)
    return RequestScope(BodyLimit(app, service.max_body_bytes), service.metrics.count_request)


@api.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service, record = _begin(request, "chat_completions")
    body = parse_body(ChatCompletionRequest, await request.body())
    model = service.model_name(body.model)
    job = await service.prepare(service.preparer.chat, body)
    reply = ChatReply(_new_id("chatcmpl"), int(time.time()), model, include_usage=body.include_usage)
    return _exchange(service, record, body, job, reply)


@api.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue a text."""
    service, record = _begin(request, "completions")
    body = parse_body(CompletionRequest, await request.body())
    model = service.model_name(body.model)
    job = await service.prepare(service.preparer.completion, body)
    reply = TextReply(_new_id("cmpl"), int(time.time()), model, include_usage=body.include_usage)
    return _exchange(service, record, body, job, reply)


@api.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The names under which the model is served."""
    service, _ = _begin(request, "models")
    return _json({"object": "list", "data": [_model(service, name) for name in service.model_names]})


@api.get("/v1/models/{name:path}")
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


def _exchange(service: Service, record: Record, body: GenerationRequest, job: Job, reply: Reply) -> Exchange:
    return Exchange(
        service.engine,
        service.preparer.text.tokenizer,
        job,
        reply,
        record,
        stream=bool(body.stream),
        include_usage=body.include_usage,
        timeout_s=service.request_timeout_s,
    )


def _new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


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
    """The client left while it was still sending; nobody reads this response."""
    request.state.record.outcome = "client_gone"
    return Response(status_code=499)
