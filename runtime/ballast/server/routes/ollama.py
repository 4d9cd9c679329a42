"""The routes of Ollama's API, whose chats and prompts are translated to chat requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from ballast.engine.engine import EngineState
from ballast.errors import CapacityError, RequestError
from ballast.generation.job import Job
from ballast.server.openapi import describes
from ballast.server.requests.record import Record
from ballast.server.requests.response import Framing
from ballast.server.routes.context import begin, json_response
from ballast.server.service import Service
from ballast.wire.field_names import client_field_names
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

router = APIRouter()


def _describes(reply: type[BaseModel], *, body: type[BaseModel] | None = None, streams: bool = False) -> dict[str, Any]:
    return describes(reply, body=body, streams=streams, stream_type=LINES, error=OllamaError)


@router.get("/api/version", **_describes(ApiVersion))
async def version(request: Request) -> Response:
    """The version of Ollama's API that this server has."""
    begin(request, "ollama_models")
    return json_response({"version": API_VERSION})


@router.get("/api/tags", **_describes(Tags))
async def list_tags(request: Request) -> Response:
    """The names under which the model is served, in Ollama's form."""
    service, _ = begin(request, "ollama_models")
    return json_response(tags(list(service.model_names), service.facts, service.created).model_dump())


@router.get("/api/ps", **_describes(RunningModels))
async def list_running(request: Request) -> Response:
    """The model once it is loaded, in Ollama's form."""
    service, _ = begin(request, "ollama_models")
    names = list(service.model_names) if service.engine.state is EngineState.READY else []
    reply = running_models(
        names,
        service.facts,
        num_device_bytes=service.planned_bytes.get("device", 0),
        context_length=service.engine.limits.max_model_tokens,
    )
    return json_response(reply.model_dump())


@router.post("/api/show", **_describes(Shown, body=OllamaNameRequest))
async def show(request: Request) -> Response:
    """The model's details and capabilities, in Ollama's form."""
    service, record = begin(request, "ollama_models")
    body = await service.on_body(request, record, lambda data: _parse(OllamaNameRequest, data, service, record))
    if not _is_served(service, body.model):
        raise service.no_such_model(body.model)
    limits = service.engine.limits
    reply = shown(
        body.model,
        service.facts,
        service.request_builder.text,
        context_length=limits.max_model_tokens,
        created=service.created,
    )
    return json_response(reply.model_dump())


@router.post("/api/chat", **_describes(Chatted, body=OllamaChatRequest, streams=True))
async def chat(request: Request) -> Response:
    """Answer a conversation, in Ollama's words and with its defaults."""
    service, record = begin(request, "ollama_chat")

    def work(data: bytes) -> tuple[OllamaChatRequest, Job | None]:
        body = _parse(OllamaChatRequest, data, service, record)
        _check_name(service, body.model)
        if not body.messages:
            return body, None
        with client_field_names(CHAT_FIELDS):
            return body, service.request_builder.chat(chat_of(body, record.ignored), split_reasoning=True)

    body, job = await service.on_body(request, record, work, is_chat=True, generates=True)
    return _respond(service, record, "chat", body, job)


@router.post("/api/generate", **_describes(Prompted, body=OllamaGenerateRequest, streams=True))
async def generate(request: Request) -> Response:
    """Answer a prompt, or continue it if it is raw, in Ollama's words and with its defaults."""
    service, record = begin(request, "ollama_generate")

    def work(data: bytes) -> tuple[OllamaGenerateRequest, Job | None]:
        body = _parse(OllamaGenerateRequest, data, service, record)
        _check_name(service, body.model)
        builder = service.request_builder
        if not body.prompt and not body.suffix:
            return body, None
        with client_field_names(GENERATE_FIELDS):
            if body.is_text:
                return body, builder.completion(completion_of(body, record.ignored))
            return body, builder.chat(prompted_chat(body, record.ignored), split_reasoning=True)

    body, job = await service.on_body(request, record, work, is_chat=True, generates=True)
    return _respond(service, record, "generate", body, job)


@router.post("/api/pull", **_describes(Pulled, body=OllamaPullRequest, streams=True))
async def pull(request: Request) -> Response:
    """Success for the model that is served; nothing is fetched while the server runs."""
    service, record = begin(request, "ollama_models")
    body = await service.on_body(request, record, lambda data: _parse(OllamaPullRequest, data, service, record))
    if not _is_served(service, body.model):
        raise RequestError(
            f"model: {body.model!r} is not served, and this server fetches no models while it runs; fetch it with "
            "`ballast pull` and start `ballast serve` with it",
            param="model",
            code="model_not_found",
            status=404,
        )
    done = {"status": "success"}
    return json_response(done) if body.stream is False else Response(line(done), media_type=LINES)


async def _no_models(request: Request) -> Response:
    """Refused: the model is the one that the server was started with."""
    raise RequestError(
        f"{request.url.path}: this server makes, copies, uploads and deletes no models; `ballast pull` and `ballast "
        "models` do, where the files are",
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


def _parse(kind: type[Any], data: bytes, service: Service, record: Record) -> Any:
    return parse_ollama(kind, data, service.engine.limits.max_model_tokens, record.ignored)


def _own_name(service: Service, asked: str) -> str:
    """The server's name for a name that may have Ollama's default tag."""
    return asked if asked in service.model_names else asked.removesuffix(LATEST)


def _is_served(service: Service, asked: str) -> bool:
    return _own_name(service, asked) in service.model_names


def _check_name(service: Service, asked: str) -> None:
    """Raises RequestError (404) for a name that the server does not answer to."""
    service.model_name(_own_name(service, asked))


def _respond(service: Service, record: Record, kind: Kind, body: OllamaRequest, job: Job | None) -> Response:
    if job is None:
        if (state := service.engine.state) is not EngineState.READY:
            raise CapacityError(f"the server is {state}, try again later", status=503)
        return Response(loaded(kind, body.model), media_type=LINES if body.streams else "application/json")
    token_bytes = service.request_builder.text.tokenizer.token_bytes
    reply = OllamaReply(kind, body.model, record.started, token_bytes, shows_logprobs=bool(body.logprobs))
    names = CHAT_FIELDS if kind == "chat" else GENERATE_FIELDS
    framing = Framing(LINES, reply.keep_alive)
    return service.respond(record, job, reply, stream=body.streams, names=names, framing=framing)
