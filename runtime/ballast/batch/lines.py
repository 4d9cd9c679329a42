"""The lines of both files: requests and replies in OpenAI's batch format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field, ValidationError

from ballast.errors import shown
from ballast.wire.json_text import to_json

OWN_BEGIN = b'{"id":"batch_req_'
"""The beginning of every line of a file of replies."""


class LineError(Exception):
    """A line is invalid. The message continues a sentence that begins with its number."""


class BatchRequest(BaseModel):
    """One request. Other fields are ignored."""

    custom_id: Annotated[str, Field(min_length=1, strict=True)]
    method: Literal["POST"] = "POST"
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to one request."""

    status: int
    request_id: str
    body: bytes
    """JSON."""
    retry_after_s: float = 0.0


class _Response(BaseModel):
    status_code: int


class _Held(BaseModel):
    custom_id: str
    response: _Response | None
    error: Mapping[str, Any] | None


def read_request(line: bytes) -> BatchRequest:
    """Parse a line of the file of requests. Raises LineError."""
    try:
        return BatchRequest.model_validate_json(line)
    except ValidationError as error:
        raise LineError(_problem(error)) from None


def read_held(line: bytes) -> tuple[str, bool]:
    """The custom_id of a line of the file of replies, and whether the request failed. Raises LineError."""
    try:
        held = _Held.model_validate_json(line)
    except ValidationError as error:
        raise LineError(_problem(error)) from None
    return held.custom_id, held.response is None or held.response.status_code != 200


def refusal(request: BatchRequest, urls: Sequence[str]) -> tuple[str, str] | None:
    """Error code and message of a request that is not attempted; None otherwise. `urls`: the URLs that a batch
    supports."""
    if request.url not in urls:
        served = ", ".join(urls)
        return "url_not_served", f"url: {shown(request.url)} is not supported in a batch; use one of {served}"
    if request.body.get("stream"):
        return "stream_not_supported", "stream: a batch cannot stream replies; leave it out"
    return None


def answer_line(custom_id: str, answer: Answer) -> bytes:
    """The line for a request that was answered, possibly with an error."""
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": orjson.Fragment(answer.body),
    }
    return _line(custom_id, answer.request_id, {"response": response, "error": None})


def refusal_line(custom_id: str, request_id: str, code: str, message: str) -> bytes:
    """The line for a request that was not attempted."""
    return _line(custom_id, request_id, {"response": None, "error": {"code": code, "message": message}})


def _line(custom_id: str, request_id: str, rest: Mapping[str, Any]) -> bytes:
    return to_json({"id": f"batch_req_{request_id}", "custom_id": custom_id, **rest}) + b"\n"


def _problem(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(map(str, detail["loc"]))
    if detail["type"] == "json_invalid":
        return f"is not JSON: {detail['msg'].removeprefix('Invalid JSON: ')}"
    if detail["type"] == "missing":
        return f"{path} is missing"
    return f"{path}: {detail['msg']}" if path else "is not a JSON object"
