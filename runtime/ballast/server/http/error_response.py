"""Errors as HTTP responses, including errors of the HTTP framework."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from ballast.wire.errors import ErrorReply, error_body, error_reply, error_type
from ballast.wire.json_text import to_json


def http_error_reply(error: Exception) -> ErrorReply:
    """The reply to a request that ended with `error`."""
    if isinstance(error, HTTPException):
        body = error_body(error.detail, error_type=error_type(error.status_code))
        return ErrorReply(error.status_code, body, error.headers or {})
    return error_reply(error)


def error_response(reply: ErrorReply) -> Response:
    """The response that sends the reply."""
    return Response(to_json(reply.body), reply.status, dict(reply.headers), media_type="application/json")
