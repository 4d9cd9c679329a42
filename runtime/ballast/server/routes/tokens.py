"""Tokens without a generation: /tokenize and /detokenize in vLLM's and in llama.cpp's format, and /tokenizer_info.

The fields of a request decide its format. Replies have the fields of both.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from ballast.errors import RequestError
from ballast.generation.request_builder import RequestBuilder
from ballast.server.openapi import describes
from ballast.server.routes.context import begin
from ballast.server.service import Service
from ballast.text.loading import Text
from ballast.text.tokenizer import Tokenizer
from ballast.wire.field_rules import Holds
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.json_text import list_to_json, to_json
from ballast.wire.known_fields import read_fields
from ballast.wire.openai.file_parts import read_files
from ballast.wire.openai.message_fields import MESSAGE, TOOL
from ballast.wire.openai.request import ChatCompletionRequest
from ballast.wire.parsing import WHOLE_ITEMS, Objects, StrictModel, check_lengths, parse_json, validated

router = APIRouter()


class TokenizeRequest(StrictModel):
    """Body of POST /tokenize: exactly one of `prompt`, `messages` (vLLM) and `content` (llama.cpp)."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = Field(None, description="BOS in front of `prompt`, if the model has one: true")
    return_token_strs: bool | None = None

    messages: Annotated[Objects | None, Holds(MESSAGE)] = None
    tools: Annotated[Objects | None, Holds(TOOL)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    content: str | None = None
    add_special: bool | None = Field(None, description="BOS in front of `content`: false")
    parse_special: bool | None = Field(None, description="parse control tokens in `content`: true")
    with_pieces: bool | None = Field(None, description="reply with {id, piece} in place of ids")


class DetokenizeRequest(StrictModel):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True), WHOLE_ITEMS]


class TokenPiece(BaseModel):
    """A token and its text, or its bytes if they are not valid text."""

    id: int
    piece: str | list[int]


class TokenizeReply(BaseModel):
    """Reply of POST /tokenize."""

    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class DetokenizeReply(BaseModel):
    """Reply of POST /detokenize: the text, under the names of both formats."""

    prompt: str
    content: str


class TokenizerInfo(BaseModel):
    """Reply of GET /tokenizer_info."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None
    eos_token_ids: list[int]
    pad_token: str | None
    add_bos_token: bool


@router.post("/tokenize", **describes(TokenizeReply, body=TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Token ids of a text or of a conversation."""
    service, record = begin(request, "tokenize")
    return _response(await service.on_body(request, record, partial(tokenized, service), is_chat=True))


@router.post("/detokenize", **describes(DetokenizeReply, body=DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    service, record = begin(request, "detokenize")
    return _response(await service.on_body(request, record, partial(detokenized, service)))


@router.get("/tokenizer_info", **describes(TokenizerInfo))
async def tokenizer_info(request: Request) -> Response:
    """Tokenizer properties for evaluation tools."""
    service, _ = begin(request, "tokenizer_info")
    return _response(_json(described(service.model.text, service.engine.limits.max_model_tokens)))


def tokenized(service: Service, data: bytes, ignored: IgnoredFields) -> bytes:
    """The reply to a body of /tokenize, a TokenizeReply as JSON. Raises RequestError. Not for the event loop."""
    value = parse_json(data)
    check_lengths(value, service.engine.limits.max_model_tokens)
    body = read_fields(TokenizeRequest, value, ignored)
    read_files(body.messages or ())
    service.endpoints.names.for_reply(body.model)
    given = [name for name in ("prompt", "messages", "content") if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError(f"expected exactly one of prompt, messages and content; found {len(given)}", param="prompt")
    tokenizer = service.model.text.tokenizer
    ids = _ids(service.endpoints.builder, body)
    tokens = list_to_json(ids, partial(_piece, tokenizer) if body.with_pieces else None)
    strings = list_to_json(ids, partial(_spelling, tokenizer)) if body.return_token_strs else b"null"
    rest = to_json({"count": len(ids), "max_model_len": service.engine.limits.max_model_tokens})
    return b'{"tokens":%b,"token_strs":%b,%b' % (tokens, strings, rest[1:])


def detokenized(service: Service, data: bytes, ignored: IgnoredFields) -> bytes:
    """The reply to a body of /detokenize, a DetokenizeReply as JSON. Raises RequestError. Not for the event loop."""
    body = read_fields(DetokenizeRequest, parse_json(data), ignored)
    service.endpoints.names.for_reply(body.model)
    service.endpoints.builder.check_ids("tokens", body.tokens)
    text = service.model.text.tokenizer.decode(body.tokens, skip_control=False)
    return _json(DetokenizeReply(prompt=text, content=text))


def described(text: Text, max_model_tokens: int) -> TokenizerInfo:
    """The reply of /tokenizer_info."""
    tokenizer = text.tokenizer
    return TokenizerInfo(
        tokenizer_class="PreTrainedTokenizerFast",
        vocab_size=tokenizer.vocab_size,
        model_max_length=max_model_tokens,
        bos_token=_spelling(tokenizer, tokenizer.bos_id),
        bos_token_id=tokenizer.bos_id,
        eos_token=_spelling(tokenizer, tokenizer.eos_id),
        eos_token_id=tokenizer.eos_id,
        eos_token_ids=sorted(tokenizer.eos_ids),
        pad_token=None,
        add_bos_token=tokenizer.add_bos,
    )


def _ids(request_builder: RequestBuilder, body: TokenizeRequest) -> list[int]:
    tokenizer = request_builder.text.tokenizer
    if body.messages is not None:
        fields = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
        chat = {name: value for name in fields if (value := getattr(body, name)) is not None}
        return list(request_builder.chat_prompt(validated(ChatCompletionRequest, chat)).ids)
    if body.prompt is not None:
        return tokenizer.encode(body.prompt, add_bos=tokenizer.add_bos and body.add_special_tokens is not False)
    return tokenizer.encode(
        body.content or "", parse_special=body.parse_special is not False, add_bos=bool(body.add_special)
    )


def _piece(tokenizer: Tokenizer, token_id: int) -> dict[str, int | str | list[int]]:
    data = tokenizer.token_bytes(token_id)
    try:
        return {"id": token_id, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(data)}


def _spelling(tokenizer: Tokenizer, token_id: int | None) -> str | None:
    return None if token_id is None else tokenizer.token_bytes(token_id).decode(errors="replace")


def _json(reply: BaseModel) -> bytes:
    """The reply as JSON. It may be long, so this is not for the event loop."""
    return to_json(reply.model_dump())


def _response(body: bytes) -> Response:
    return Response(body, media_type="application/json")
