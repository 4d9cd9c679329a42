"""Paths of vLLM's, SGLang's and llama.cpp's servers that their clients, load balancers and dashboards use."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, RootModel
from starlette.responses import Response

from ballast.engine.engine import EngineState
from ballast.errors import CapacityError, RequestError
from ballast.server.openapi import describes
from ballast.server.routes.context import begin, json_response, service_of
from ballast.server.service import Service
from ballast.version import __version__
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.json_text import to_json
from ballast.wire.openai.request import ChatCompletionRequest, parse_body
from ballast.wire.schemas import Status

router = APIRouter()


class Load(BaseModel):
    """The load of the server."""

    server_load: int


class Prompt(BaseModel):
    """A conversation as the prompt of the model."""

    prompt: str


class Slot(BaseModel):
    """One slot of the batch."""

    id: int
    n_ctx: int
    is_processing: bool
    n_decoded: int


class Slots(RootModel[list[Slot]]):
    """The slots of the batch."""


class Props(BaseModel):
    """Server properties for llama.cpp's clients."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str
    is_sleeping: bool


def _health(request: Request) -> Response:
    """Whether requests are accepted, as in llama.cpp's server and vLLM."""
    state = service_of(request).engine.state
    if state is not EngineState.READY:
        raise CapacityError(f"the server is {state}, try again later", status=503)
    return json_response({"status": "ok"})


@router.get("/health", **describes(Status, is_open=True))
async def health(request: Request) -> Response:
    """200 from when the model is loaded until the server stops."""
    return _health(request)


@router.get("/v1/health", include_in_schema=False)
async def v1_health(request: Request) -> Response:
    """The same as /health."""
    return _health(request)


@router.get("/ping", **describes(Status, is_open=True))
async def ping(request: Request) -> Response:
    """The same as /health, for Amazon SageMaker."""
    return _health(request)


@router.post("/ping", **describes(Status, is_open=True))
async def post_ping(request: Request) -> Response:
    """The same as GET /ping."""
    request.state.record.is_counted = False
    return _health(request)


@router.get("/load", **describes(Load))
async def load(request: Request) -> Response:
    """Number of running and waiting requests, in vLLM's format."""
    now = service_of(request).engine.snapshot()
    return json_response({"server_load": now.running + now.waiting})


@router.get("/props", **describes(Props))
async def props(request: Request) -> Response:
    """Server properties for llama.cpp's clients: context, slots, chat template."""
    service = service_of(request)
    text, limits = service.model.text, service.engine.limits

    def spelled(token_id: int | None) -> str:
        return "" if token_id is None else text.tokenizer.token_bytes(token_id).decode(errors="replace")

    reply = Props(
        default_generation_settings={
            "n_ctx": limits.max_model_tokens,
            "params": {"n_predict": limits.max_new_tokens, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        },
        total_slots=limits.max_batch_size,
        model_alias=service.endpoints.names.names[0],
        model_path=service.endpoints.names.names[0],
        chat_template="" if text.template is None else text.template.source,
        bos_token=spelled(text.tokenizer.bos_id),
        eos_token=spelled(text.tokenizer.eos_id),
        modalities={"vision": False, "audio": False},
        build_info=f"ballast {__version__}",
        is_sleeping=False,
    )
    return json_response(reply.model_dump())


@router.get("/slots", **describes(Slots))
async def slots(request: Request) -> Response:
    """The slots of the batch, in llama.cpp's format, without any text; 503 with ?fail_on_no_slot=1 if none is free."""
    engine = service_of(request).engine
    running = [each for each in engine.describe() if each["state"] in ("prefill", "decode")]
    total = engine.limits.max_batch_size
    if request.query_params.get("fail_on_no_slot") == "1" and len(running) >= total:
        raise CapacityError("no slot is free", status=503, code="no_free_slot")
    taken = [int(str(each["generated_tokens"])) for each in running[:total]]
    states = [*((True, num) for num in taken), *((False, 0) for _ in range(total - len(taken)))]
    shown = [
        Slot(id=n, n_ctx=engine.limits.max_model_tokens, is_processing=busy, n_decoded=num).model_dump()
        for n, (busy, num) in enumerate(states)
    ]
    return json_response(shown)


@router.post("/apply-template", **describes(Prompt, body=ChatCompletionRequest))
async def apply_template(request: Request) -> Response:
    """The prompt of a conversation as text, in llama.cpp's format."""
    service, record = begin(request, "apply_template")
    reply = await service.on_body(request, record, partial(templated, service), is_chat=True)
    return Response(reply, media_type="application/json")


def templated(service: Service, data: bytes, ignored: IgnoredFields) -> bytes:
    """The reply to a body of /apply-template, as JSON. Raises RequestError. Not for the event loop."""
    body = parse_body(ChatCompletionRequest, data, service.engine.limits.max_model_tokens, ignored)
    ids = service.endpoints.builder.chat_prompt(body).ids
    return to_json({"prompt": service.model.text.tokenizer.decode(ids, skip_control=False)})


async def _no_embeddings(request: Request) -> Response:
    """Rejected: the model generates text."""
    raise RequestError(
        f"{request.url.path}: this server provides no embeddings and no ranking, because its models generate text; use "
        "a server for embedding models",
        code="no_embeddings",
        status=404,
    )


for _path in (
    *("/v1/embeddings", "/embeddings", "/embedding", "/v1/rerank", "/rerank", "/v1/reranking", "/reranking"),
    *("/api/embed", "/api/embeddings"),
):
    router.add_api_route(_path, _no_embeddings, methods=["POST"], include_in_schema=False)
