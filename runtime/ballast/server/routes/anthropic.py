"""The routes of Anthropic's Messages API, which are translated to chat requests."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.errors import RequestError
from ballast.generation.job import Job
from ballast.server.openapi import describes
from ballast.server.routes.context import begin, json_response
from ballast.wire.anthropic.reply import AnthropicReply
from ballast.wire.anthropic.request import MessagesRequest, parse_messages, to_chat
from ballast.wire.field_names import client_field_names
from ballast.wire.schemas import AnthropicError, AnthropicMessage, TokenCount

router = APIRouter()


@router.post(
    "/v1/messages",
    **describes(AnthropicMessage, body=MessagesRequest, streams=True, error=AnthropicError),
)
async def messages(request: Request) -> Response:
    """Answer a conversation, in Anthropic's words."""
    service, record = begin(request, "messages")

    def work(data: bytes) -> tuple[MessagesRequest, Job]:
        body = parse_messages(data, service.engine.limits.max_model_tokens, record.ignored)
        if body.max_tokens is None:
            raise RequestError("max_tokens: this field is required", param="max_tokens")
        service.model_name(body.model)
        with client_field_names(body.error_names):
            return body, service.request_builder.chat(to_chat(body, record.ignored), split_reasoning=True)

    body, job = await service.on_body(request, record, work, is_chat=True, generates=True)
    reply = AnthropicReply(f"msg_{uuid.uuid4().hex}", body.model)
    return service.respond(record, job, reply, stream=bool(body.stream), names=body.error_names)


@router.post("/v1/messages/count_tokens", **describes(TokenCount, body=MessagesRequest, error=AnthropicError))
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message has."""
    service, record = begin(request, "count_tokens")

    def work(data: bytes) -> int:
        body = parse_messages(data, service.engine.limits.max_model_tokens, record.ignored)
        service.model_name(body.model)
        with client_field_names(body.error_names):
            return len(service.request_builder.chat_prompt(to_chat(body, record.ignored)).ids)

    num_tokens = await service.on_body(request, record, work, is_chat=True)
    return json_response({"input_tokens": num_tokens})
