"""The routes of Anthropic's Messages API and of OpenAI's Responses API: other words for a chat."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.errors import RequestError
from ballast.server.anthropic_reply import AnthropicReply
from ballast.server.anthropic_request import MessagesRequest, parse_messages
from ballast.server.anthropic_request import to_chat as messages_to_chat
from ballast.server.exchange import Record
from ballast.server.field_names import OF_MESSAGES, OF_RESPONSES, in_words_of
from ballast.server.job import Job
from ballast.server.json_text import to_json
from ballast.server.openapi import BODY_ERRORS, EVERY_ERROR, describes
from ballast.server.reply_schemas import AnthropicError, AnthropicMessage, ResponseObject, TokenCount
from ballast.server.responses_reply import ResponsesReply
from ballast.server.responses_request import ResponsesRequest, parse_responses
from ballast.server.responses_request import to_chat as response_to_chat

if TYPE_CHECKING:
    from ballast.server.app import Service

router = APIRouter()


def _with_anthropics_errors(route: dict[str, Any]) -> dict[str, Any]:
    for status, description in (EVERY_ERROR | BODY_ERRORS).items():
        route["responses"][status] = {"description": description, "model": AnthropicError}
    return route


@router.post(
    "/v1/messages",
    **_with_anthropics_errors(describes(AnthropicMessage, body=MessagesRequest, streams=True)),
)
async def messages(request: Request) -> Response:
    """Answer a conversation, in Anthropic's words."""
    service, record = _begin(request, "messages")

    def work(data: bytes) -> tuple[MessagesRequest, Job]:
        body = parse_messages(data, service.engine.limits.max_model_tokens)
        if body.max_tokens is None:
            raise RequestError("max_tokens: this field is required", param="max_tokens")
        service.model_name(body.model)
        with in_words_of(OF_MESSAGES):
            return body, service.preparer.chat(messages_to_chat(body), split_reasoning=True)

    body, job = await service.on_body(request, record, work)
    reply = AnthropicReply(f"msg_{uuid.uuid4().hex}", body.model)
    return service.exchange(record, job, reply, stream=bool(body.stream))


@router.post("/v1/messages/count_tokens", **_with_anthropics_errors(describes(TokenCount, body=MessagesRequest)))
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message has."""
    service, record = _begin(request, "count_tokens")

    def work(data: bytes) -> int:
        body = parse_messages(data, service.engine.limits.max_model_tokens)
        service.model_name(body.model)
        with in_words_of(OF_MESSAGES):
            return len(service.preparer.chat_prompt(messages_to_chat(body)).ids)

    num_tokens = await service.on_body(request, record, work)
    return Response(to_json({"input_tokens": num_tokens}), media_type="application/json")


@router.post("/v1/responses", **describes(ResponseObject, body=ResponsesRequest, streams=True))
async def responses(request: Request) -> Response:
    """Answer with a response, which is not stored."""
    service, record = _begin(request, "responses")

    def work(data: bytes) -> tuple[ResponsesRequest, str, Job]:
        body = parse_responses(data, service.engine.limits.max_model_tokens)
        model = service.model_name(body.model)
        with in_words_of(OF_RESPONSES):
            return body, model, service.preparer.chat(response_to_chat(body), split_reasoning=True)

    body, model, job = await service.on_body(request, record, work)
    reply = ResponsesReply(f"resp_{uuid.uuid4().hex}", int(time.time()), model, body)
    return service.exchange(record, job, reply, stream=bool(body.stream))


def _begin(request: Request, endpoint: str) -> tuple[Service, Record]:
    record: Record = request.state.record
    record.endpoint = endpoint
    return request.app.state.service, record
