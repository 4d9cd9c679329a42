"""The routes of OpenAI's Responses API, which are translated to chat requests."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.server.openapi import describes
from ballast.server.routes.context import begin, json_response
from ballast.wire.responses.request import ResponsesRequest
from ballast.wire.schemas import InputTokens, ResponseObject

router = APIRouter()


@router.post("/responses", include_in_schema=False)
@router.post("/v1/responses", **describes(ResponseObject, body=ResponsesRequest, streams=True))
async def responses(request: Request) -> Response:
    """Answer with a response, which is not stored."""
    service, record = begin(request, "responses")
    prepared = await service.prepare(request, record, service.endpoints.response, is_chat=True)
    return service.respond(record, prepared)


@router.post("/responses/input_tokens", include_in_schema=False)
@router.post("/v1/responses/input_tokens", **describes(InputTokens, body=ResponsesRequest))
async def input_tokens(request: Request) -> Response:
    """Number of prompt tokens of a response."""
    service, record = begin(request, "count_tokens")
    num_tokens = await service.on_body(request, record, service.endpoints.response_tokens, is_chat=True)
    return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})
