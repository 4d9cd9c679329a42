"""Generates /openapi.json: the document that FastAPI generates from the routes, plus bodies that are read off the event
loop and errors that any route may return."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

SCHEMAS = "#/components/schemas/"

EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""One event of a stream. Only Anthropic's API and the Responses API name their events."""

EVERY_ERROR = {
    401: "no valid API key, if the server requires one",
    403: "a page of another origin that is not in --cors_origins",
    421: "a host that is not allowed; see --allowed_hosts",
    500: "an internal error",
    503: "not ready, or stopping",
}
BODY_ERRORS = {
    400: "an invalid body",
    404: "no such model",
    408: "the body arrived too slowly",
    413: "the body is too large",
    415: "the body's Content-Type is not JSON, or it is compressed",
    429: "the queue is full; Retry-After and Retry-After-Ms specify when to retry",
    504: "the request exceeded the server's time limit",
}


class ErrorDetail(BaseModel):
    """Details of the error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(BaseModel):
    """The reply of every error."""

    error: ErrorDetail


def describes(
    reply: type[BaseModel] | UnionType | Literal["text/plain"],
    *,
    body: type[BaseModel] | None = None,
    streams: bool = False,
    stream_type: str = "text/event-stream",
    error: type[BaseModel] | None = None,
    unready: type[BaseModel] | None = None,
    is_open: bool = False,
) -> dict[str, Any]:
    """Arguments of a route that answers with `reply` and reads `body` itself.

    `streams`: it can stream events, or objects if `stream_type` says so. `error`: the type of its errors, if not that
    of OpenAI's API. `unready`: its reply with status 503 if that is not an error. `is_open`: it needs no key.
    """
    part = EVENT if stream_type == "text/event-stream" else {"type": "object"}
    content: dict[str, Any] = {stream_type: {"schema": part}} if streams else {}
    success: dict[str, Any] = {"description": "Success"}
    if isinstance(reply, str):
        content[reply] = {"schema": {"type": "string"}}
    else:
        success["model"] = reply
    route: dict[str, Any] = {"responses": {200: success | ({"content": content} if content else {})}}
    if error is not None:
        for status, description in (EVERY_ERROR | (BODY_ERRORS if body is not None else {})).items():
            route["responses"][status] = {"description": description, "model": error}
    if unready is not None:
        route["responses"][503] = {"description": EVERY_ERROR[503], "model": unready}
    if isinstance(reply, str):
        route["response_class"] = PlainTextResponse
    if is_open:
        route["openapi_extra"] = {"security": []}
    if body is not None:
        schema = body.model_json_schema(ref_template=SCHEMAS + "{model}")
        media = {"application/json": {"schema": schema}}
        route["openapi_extra"] = {"requestBody": {"required": True, "content": media}}
    return route


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an application."""
    described = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, servers=app.servers
    )
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    for operations in described["paths"].values():
        for operation in operations.values():
            _hoist_body(operation, schemas)
            _add_errors(operation, EVERY_ERROR | (BODY_ERRORS if "requestBody" in operation else {}))
            if operation.get("security") == []:
                for status in ("401", "403", "421"):
                    del operation["responses"][status]
            if operation.get("parameters"):
                _add_errors(operation, {404: "not found"})
    schemas.update(ErrorEnvelope=_schema(ErrorEnvelope, schemas))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return described


def _hoist_body(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Move the body's schema, and those inside it, to the components that references point to."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        if "$ref" not in schema:
            schema = dict(schema)
            schemas.update(schema.pop("$defs", {}))
            schemas[schema["title"]] = schema
            content["schema"] = {"$ref": SCHEMAS + schema["title"]}


def _add_errors(operation: dict[str, Any], errors: Mapping[int, str]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # added by FastAPI; this server never sends it
    for status, description in errors.items():
        content = {"application/json": {"schema": {"$ref": SCHEMAS + "ErrorEnvelope"}}}
        responses.setdefault(str(status), {"description": description, "content": content})


def _schema(kind: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = kind.model_json_schema(ref_template=SCHEMAS + "{model}")
    schemas.update(schema.pop("$defs", {}))
    return schema
