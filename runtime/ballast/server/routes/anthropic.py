"""The routes of Anthropic's Messages API, which are translated to chat requests."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.server.openapi import describes
from ballast.server.routes.context import begin, json_response
from ballast.wire.anthropic.request import MessagesRequest
from ballast.wire.schemas import AnthropicError, AnthropicMessage, TokenCount

router = APIRouter()


@router.post(
    "/v1/messages",
    **describes(AnthropicMessage, body=MessagesRequest, streams=True, error=AnthropicError),
)
async def messages(request: Request) -> Response:
    """Answer a conversation, in Anthropic's format."""
    service, record = begin(request, "messages")
    prepared = await service.prepare(request, record, service.endpoints.message, is_chat=True)
    return service.respond(record, prepared)


@router.post("/v1/messages/count_tokens", **describes(TokenCount, body=MessagesRequest, error=AnthropicError))
async def count_tokens(request: Request) -> Response:
    """Number of prompt tokens of a message."""
    service, record = begin(request, "count_tokens")
    num_tokens = await service.on_body(request, record, service.endpoints.message_tokens, is_chat=True)
    return json_response({"input_tokens": num_tokens})
