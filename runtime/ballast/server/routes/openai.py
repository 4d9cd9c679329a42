"""The routes of OpenAI's API: chat and text completions, and the list of models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.server.openapi import describes
from ballast.server.routes.context import begin, json_response
from ballast.server.service import Service
from ballast.wire.anthropic.reply import model_info, model_page
from ballast.wire.openai.request import (
    ChatCompletionRequest,
    CompletionRequest,
)
from ballast.wire.schemas import (
    AnthropicModel,
    AnthropicModelList,
    ChatCompletion,
    ModelCard,
    ModelList,
    TextCompletion,
)

router = APIRouter()

ANTHROPIC_HEADER = "anthropic-version"
"""Sent by Anthropic's clients with every request."""


@router.post("/chat/completions", include_in_schema=False)
@router.post("/v1/chat/completions", **describes(ChatCompletion, body=ChatCompletionRequest, streams=True))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service, record = begin(request, "chat_completions")
    prepared = await service.prepare(request, record, service.endpoints.chat_completion, is_chat=True)
    return service.respond(record, prepared)


@router.post("/completions", include_in_schema=False)
@router.post("/v1/completions", **describes(TextCompletion, body=CompletionRequest, streams=True))
async def completions(request: Request) -> Response:
    """Continue a text."""
    service, record = begin(request, "completions")
    prepared = await service.prepare(request, record, service.endpoints.completion, is_chat=False)
    return service.respond(record, prepared)


@router.get("/models", include_in_schema=False)
@router.get("/v1/models", **describes(ModelList | AnthropicModelList))
async def list_models(request: Request) -> Response:
    """The names under which the model is served; in Anthropic's format if the request has the header
    `anthropic-version`."""
    service, _ = begin(request, "models")
    if ANTHROPIC_HEADER in request.headers:
        return json_response(model_page([_anthropic_model(service, name) for name in service.endpoints.names.names]))
    return json_response({"object": "list", "data": [_model(service, name) for name in service.endpoints.names.names]})


@router.get("/models/{name:path}", include_in_schema=False)
@router.get("/v1/models/{name:path}", **describes(ModelCard | AnthropicModel))
async def show_model(request: Request, name: str) -> Response:
    """One of the names, in the same format."""
    service, _ = begin(request, "models")
    if name not in service.endpoints.names.names:
        raise service.endpoints.names.no_such_model(name)
    if ANTHROPIC_HEADER in request.headers:
        return json_response(_anthropic_model(service, name))
    return json_response(_model(service, name))


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "ballast",
        "max_model_len": service.engine.limits.max_model_tokens,
    }


def _anthropic_model(service: Service, name: str) -> dict[str, Any]:
    limits = service.engine.limits
    return model_info(name, service.created, max_input_tokens=limits.max_model_tokens, max_tokens=limits.max_new_tokens)
