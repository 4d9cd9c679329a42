"""The routes of OpenAI's Responses API, which are translated to chat requests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from fastapi import APIRouter, Request
from starlette.responses import Response

from ballast.generation.job import Job
from ballast.server.openapi import describes
from ballast.server.routes.context import begin, json_response
from ballast.wire.client_tools import CalledTool
from ballast.wire.field_names import RESPONSES_FIELDS, client_field_names
from ballast.wire.responses.reply import ResponsesReply
from ballast.wire.responses.request import ResponsesRequest, parse_responses, to_chat
from ballast.wire.schemas import InputTokens, ResponseObject

router = APIRouter()


@router.post("/responses", include_in_schema=False)
@router.post("/v1/responses", **describes(ResponseObject, body=ResponsesRequest, streams=True))
async def responses(request: Request) -> Response:
    """Answer with a response, which is not stored."""
    service, record = begin(request, "responses")

    def work(data: bytes) -> tuple[ResponsesRequest, str, Job, Mapping[str, CalledTool]]:
        body = parse_responses(data, service.engine.limits.max_model_tokens, record.ignored)
        model = service.model_name(body.model)
        with client_field_names(RESPONSES_FIELDS):
            chat, called = to_chat(body, record.ignored)
            return body, model, service.request_builder.chat(chat, split_reasoning=True), called

    body, model, job, called = await service.on_body(request, record, work, is_chat=True, generates=True)
    token_bytes = service.request_builder.text.tokenizer.token_bytes
    reply_id = f"resp_{body.request_id or uuid.uuid4().hex}"
    reply = ResponsesReply(reply_id, int(time.time()), model, body, called, token_bytes)
    return service.respond(record, job, reply, stream=bool(body.stream), names=RESPONSES_FIELDS)


@router.post("/responses/input_tokens", include_in_schema=False)
@router.post("/v1/responses/input_tokens", **describes(InputTokens, body=ResponsesRequest))
async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a response has."""
    service, record = begin(request, "count_tokens")

    def work(data: bytes) -> int:
        body = parse_responses(data, service.engine.limits.max_model_tokens, record.ignored)
        service.model_name(body.model)
        with client_field_names(RESPONSES_FIELDS):
            chat, _ = to_chat(body, record.ignored)
            return len(service.request_builder.chat_prompt(chat).ids)

    num_tokens = await service.on_body(request, record, work, is_chat=True)
    return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})
