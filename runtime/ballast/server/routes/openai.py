"""The routes of OpenAI's API: chat and text completions, and the list of models."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.generation.job import Job
from ballast.server.openapi import describes
from ballast.server.requests.record import Record
from ballast.server.requests.response import GenerationResponse
from ballast.server.routes.context import begin, json_response
from ballast.server.service import Prepared, Service
from ballast.wire.anthropic.reply import model_info, model_page
from ballast.wire.openai.reply import ChatFormat, Format, Reply, Shape, TextFormat
from ballast.wire.openai.request import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    StreamOptions,
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
    ready = await service.prepare(request, record, ChatCompletionRequest, service.request_builder.chat)
    return _respond(service, record, ready, "chatcmpl", ChatFormat(service.reasoning_fields, ready.body.custom_tools))


@router.post("/completions", include_in_schema=False)
@router.post("/v1/completions", **describes(TextCompletion, body=CompletionRequest, streams=True))
async def completions(request: Request) -> Response:
    """Continue a text."""
    service, record = begin(request, "completions")
    ready = await service.prepare(request, record, CompletionRequest, service.request_builder.completion)
    return _respond(service, record, ready, "cmpl", TextFormat())


@router.get("/models", include_in_schema=False)
@router.get("/v1/models", **describes(ModelList | AnthropicModelList))
async def list_models(request: Request) -> Response:
    """The names under which the model is served; in Anthropic's form if the header `anthropic-version` is there."""
    service, _ = begin(request, "models")
    if ANTHROPIC_HEADER in request.headers:
        return json_response(model_page([_anthropic_model(service, name) for name in service.model_names]))
    return json_response({"object": "list", "data": [_model(service, name) for name in service.model_names]})


@router.get("/models/{name:path}", include_in_schema=False)
@router.get("/v1/models/{name:path}", **describes(ModelCard | AnthropicModel))
async def show_model(request: Request, name: str) -> Response:
    """One of the names, in the same form."""
    service, _ = begin(request, "models")
    if name not in service.model_names:
        raise service.no_such_model(name)
    if ANTHROPIC_HEADER in request.headers:
        return json_response(_anthropic_model(service, name))
    return json_response(_model(service, name))


def _respond(
    service: Service, record: Record, ready: Prepared[Any], prefix: str, format_: Format
) -> GenerationResponse:
    tokenizer = service.request_builder.text.tokenizer
    shape = shape_of(ready.body, ready.job, has_vocabulary=tokenizer.has_vocabulary)
    reply_id = f"{prefix}-{ready.body.request_id or uuid.uuid4().hex}"
    reply = Reply(reply_id, int(time.time()), ready.model, format_, shape, tokenizer.token_bytes)
    return service.respond(record, ready.job, reply, stream=bool(ready.body.stream))


def shape_of(body: GenerationRequest, job: Job, *, has_vocabulary: bool) -> Shape:
    """What the reply shows besides the text. It always shows token ids if the model has no vocabulary."""
    options = body.stream_options or StreamOptions()
    return Shape(
        num_choices=job.num_choices,
        logprobs=job.sampling.logprobs is not None,
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        timings_per_token=bool(body.timings_per_token),
        token_ids=bool(body.return_token_ids) or not has_vocabulary,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        prompt_logprobs=body.prompt_logprobs is not None,
        prompt_ids=tuple(prompt.ids for prompt in job.prompts) if body.return_token_ids else (),
    )


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
