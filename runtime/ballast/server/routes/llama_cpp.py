"""The routes of llama.cpp's own completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, RootModel
from starlette.responses import Response

from ballast.server.openapi import describes
from ballast.server.routes.context import begin
from ballast.wire.llama_cpp.request import InfillRequest, LlamaRequest

router = APIRouter()


class Completed(BaseModel):
    """A continuation."""

    model_config = ConfigDict(extra="allow")

    index: int
    content: str
    tokens: list[int]
    stop: bool
    stop_type: str
    tokens_predicted: int
    tokens_evaluated: int


class LlamaCompletion(RootModel[Completed | list[Completed]]):
    """Reply of POST /completion: a continuation, or a list for several prompts or choices."""


@router.post("/completion", **describes(LlamaCompletion, body=LlamaRequest, streams=True))
async def completion(request: Request) -> Response:
    """Continue a text, in llama.cpp's format and with its defaults."""
    service, record = begin(request, "completion")
    prepared = await service.prepare(request, record, service.endpoints.llama_completion, is_chat=False)
    return service.respond(record, prepared)


@router.post("/infill", **describes(LlamaCompletion, body=InfillRequest, streams=True))
async def infill(request: Request) -> Response:
    """Fill the gap between two texts, in llama.cpp's format."""
    service, record = begin(request, "infill")
    prepared = await service.prepare(request, record, service.endpoints.infill, is_chat=False)
    return service.respond(record, prepared)
