"""The routes of Ollama's API, whose chats and prompts are translated to chat requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from ballast.engine.engine import EngineState
from ballast.errors import CapacityError, RequestError
from ballast.generation.endpoints import Prepared
from ballast.generation.job import Job
from ballast.server.openapi import describes
from ballast.server.requests.record import Record
from ballast.server.routes.context import begin, json_response
from ballast.server.service import Service
from ballast.wire.field_names import client_field_names
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.ollama.models import (
    API_VERSION,
    ApiVersion,
    Chatted,
    OllamaError,
    Prompted,
    Pulled,
    RunningModels,
    Shown,
    Tags,
    running_models,
    shown,
    tags,
)
from ballast.wire.ollama.reply import LINES, Kind, OllamaReply, line, loaded
from ballast.wire.ollama.request import (
    CHAT_FIELDS,
    GENERATE_FIELDS,
    LATEST,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaNameRequest,
    OllamaPullRequest,
    OllamaRequest,
    chat_of,
    completion_of,
    parse_ollama,
    prompted_chat,
)
from ballast.wire.parsing import StrictModel
from ballast.wire.reply import Framing

router = APIRouter()

Body = TypeVar("Body", bound=StrictModel)


def _describes(reply: type[BaseModel], *, body: type[BaseModel] | None = None, streams: bool = False) -> dict[str, Any]:
    return describes(reply, body=body, streams=streams, stream_type=LINES, error=OllamaError)


@router.get("/api/version", **_describes(ApiVersion))
async def version(request: Request) -> Response:
    """The version of Ollama's API that this server implements."""
    begin(request, "ollama_models")
    return json_response({"version": API_VERSION})


@router.get("/api/tags", **_describes(Tags))
async def list_tags(request: Request) -> Response:
    """The names under which the model is served, in Ollama's form."""
    service, _ = begin(request, "ollama_models")
    return json_response(tags(list(service.endpoints.names.names), service.model.facts, service.created).model_dump())


@router.get("/api/ps", **_describes(RunningModels))
async def list_running(request: Request) -> Response:
    """The model once it is loaded, in Ollama's form."""
    service, _ = begin(request, "ollama_models")
    names = list(service.endpoints.names.names) if service.engine.state is EngineState.READY else []
    reply = running_models(
        names,
        service.model.facts,
        num_device_bytes=service.model.planned_bytes.get("device", 0),
        context_length=service.engine.limits.max_model_tokens,
    )
    return json_response(reply.model_dump())


@router.post("/api/show", **_describes(Shown, body=OllamaNameRequest))
async def show(request: Request) -> Response:
    """The model's details and capabilities, in Ollama's form."""
    service, record = begin(request, "ollama_models")
    body = await service.on_body(request, record, partial(_parse, service, OllamaNameRequest))
    if not _is_served(service, body.model):
        raise service.endpoints.names.no_such_model(body.model)
    limits = service.engine.limits
    reply = shown(
        body.model,
        service.model.facts,
        service.model.text,
        context_length=limits.max_model_tokens,
        created=service.created,
    )
    return json_response(reply.model_dump())


@router.post("/api/chat", **_describes(Chatted, body=OllamaChatRequest, streams=True))
async def chat(request: Request) -> Response:
    """Answer a conversation, in Ollama's format and with its defaults."""
    service, record = begin(request, "ollama_chat")
    prepared = await service.prepare(request, record, partial(_chat, service, record.started), is_chat=True)
    return _respond(service, record, prepared)


@router.post("/api/generate", **_describes(Prompted, body=OllamaGenerateRequest, streams=True))
async def generate(request: Request) -> Response:
    """Answer a prompt, or continue it if it is raw, in Ollama's format and with its defaults."""
    service, record = begin(request, "ollama_generate")
    prepared = await service.prepare(request, record, partial(_generate, service, record.started), is_chat=True)
    return _respond(service, record, prepared)


@router.post("/api/pull", **_describes(Pulled, body=OllamaPullRequest, streams=True))
async def pull(request: Request) -> Response:
    """Success for the model that is served; the server downloads nothing."""
    service, record = begin(request, "ollama_models")
    body = await service.on_body(request, record, partial(_parse, service, OllamaPullRequest))
    if not _is_served(service, body.model):
        raise RequestError(
            f"model: {body.model!r} is not served, and this server downloads no models; download it with "
            "`ballast pull` and start `ballast serve` with it",
            param="model",
            code="model_not_found",
            status=404,
        )
    done = {"status": "success"}
    return json_response(done) if body.stream is False else Response(line(done), media_type=LINES)


async def _no_models(request: Request) -> Response:
    """Rejected: the server serves the model that it was started with."""
    raise RequestError(
        f"{request.url.path}: this server does not create, copy, upload or delete models; use `ballast pull` and "
        "`ballast models` on the server's machine",
        code="not_supported",
        status=404,
    )


for _path, _method in (
    ("/api/create", "POST"),
    ("/api/copy", "POST"),
    ("/api/push", "POST"),
    ("/api/delete", "DELETE"),
    ("/api/blobs/{digest}", "POST"),
    ("/api/blobs/{digest}", "GET"),
):
    router.add_api_route(_path, _no_models, methods=[_method], include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The reply to a request without a prompt, which only loads the model."""

    reply: bytes
    media_type: str


def _chat(service: Service, started: float, data: bytes, ignored: IgnoredFields) -> Prepared | _Loaded:
    body = _parse(service, OllamaChatRequest, data, ignored)
    _check_name(service, body.model)
    if not body.messages:
        return _loaded("chat", body)
    with client_field_names(CHAT_FIELDS):
        job = service.endpoints.builder.chat(chat_of(body, ignored), split_reasoning=True)
    return _prepared(service, started, "chat", body, job)


def _generate(service: Service, started: float, data: bytes, ignored: IgnoredFields) -> Prepared | _Loaded:
    body = _parse(service, OllamaGenerateRequest, data, ignored)
    _check_name(service, body.model)
    if not body.prompt and not body.suffix:
        return _loaded("generate", body)
    builder = service.endpoints.builder
    with client_field_names(GENERATE_FIELDS):
        if body.is_text:
            job = builder.completion(completion_of(body, ignored))
        else:
            job = builder.chat(prompted_chat(body, ignored), split_reasoning=True)
    return _prepared(service, started, "generate", body, job)


def _parse(service: Service, kind: type[Body], data: bytes, ignored: IgnoredFields) -> Body:
    return parse_ollama(kind, data, service.engine.limits.max_model_tokens, ignored)


def _own_name(service: Service, requested: str) -> str:
    """The server's model name for a name with or without Ollama's default tag."""
    return requested if requested in service.endpoints.names.names else requested.removesuffix(LATEST)


def _is_served(service: Service, requested: str) -> bool:
    return _own_name(service, requested) in service.endpoints.names.names


def _check_name(service: Service, requested: str) -> None:
    """Raise RequestError (404) for an unknown model name."""
    service.endpoints.names.for_reply(_own_name(service, requested))


def _loaded(kind: Kind, body: OllamaRequest) -> _Loaded:
    return _Loaded(loaded(kind, body.model), LINES if body.streams else "application/json")


def _prepared(service: Service, started: float, kind: Kind, body: OllamaRequest, job: Job) -> Prepared:
    token_bytes = service.model.text.tokenizer.token_bytes
    reply = OllamaReply(kind, body.model, started, token_bytes, shows_logprobs=bool(body.logprobs))
    names = CHAT_FIELDS if kind == "chat" else GENERATE_FIELDS
    return Prepared(job, reply, body.streams, names, Framing(LINES, reply.keep_alive))


def _respond(service: Service, record: Record, prepared: Prepared | _Loaded) -> Response:
    if isinstance(prepared, Prepared):
        return service.respond(record, prepared)
    if (state := service.engine.state) is not EngineState.READY:
        raise CapacityError(f"the server is {state}, try again later", status=503)
    return Response(prepared.reply, media_type=prepared.media_type)
