"""The routes of llama.cpp's own completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, RootModel
from starlette.responses import Response

from ballast.generation.job import Job
from ballast.server.openapi import describes
from ballast.server.requests.response import GenerationResponse
from ballast.server.routes.context import begin
from ballast.wire.llama_cpp.reply import LlamaReply
from ballast.wire.llama_cpp.request import InfillRequest, LlamaRequest, parse_llama

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
    """Reply of POST /completion: a continuation, or a list where there are more prompts or choices."""


@router.post("/completion", **describes(LlamaCompletion, body=LlamaRequest, streams=True))
async def completion(request: Request) -> Response:
    """Continue a text, in llama.cpp's words and with its defaults."""
    return await _answer(request, "completion", LlamaRequest)


@router.post("/infill", **describes(LlamaCompletion, body=InfillRequest, streams=True))
async def infill(request: Request) -> Response:
    """Fill the gap between two texts, in llama.cpp's words."""
    return await _answer(request, "infill", InfillRequest)


async def _answer(request: Request, endpoint: str, kind: type[LlamaRequest]) -> GenerationResponse:
    service, record = begin(request, endpoint)
    builder = service.request_builder

    def work(data: bytes) -> tuple[LlamaRequest, str, Job]:
        body = parse_llama(kind, data, service.engine.limits.max_model_tokens, record.ignored)
        job = builder.infill(body) if isinstance(body, InfillRequest) else builder.completion(body)
        return body, service.model_name(body.model), job

    body, model, job = await service.on_body(request, record, work, generates=True)
    is_shown = not isinstance(body, InfillRequest)
    prompts = [prompt if is_shown and isinstance(prompt, str) else "" for prompt in body.prompt]
    reply = LlamaReply(
        model,
        [prompts[job.prompt_of(choice)] for choice in range(job.num_choices)],
        job.sampling.max_tokens,
        builder.text.tokenizer.token_bytes,
        bool(body.return_tokens),
        body.num_logprobs is not None,
        body.seed,
    )
    return service.respond(record, job, reply, stream=bool(body.stream))
