"""Errors as HTTP replies in OpenAI's envelope."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from ballast.errors import CapacityError, EngineDeadError, RequestError


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The HTTP reply for an error."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


class RequestTimeoutError(Exception):
    """A request took longer than --request_timeout_s."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the request took longer than this server's limit of {timeout_s:g} s")


def error_body(
    message: str, *, error_type: str, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    """The envelope of every error."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def error_reply(error: Exception) -> ErrorReply:
    """The reply to a request that ended with `error`. An unexpected error is a 500 without details."""
    match error:
        case RequestError():
            kind = error_type(error.status)
            body = error_body(error.message, error_type=kind, param=error.param, code=error.code)
            return ErrorReply(error.status, body)
        case CapacityError():
            body = error_body(error.message, error_type="overloaded_error", code=error.code)
            headers = {
                "Retry-After": str(math.ceil(error.retry_after_s)),
                # OpenAI's and Anthropic's clients prefer milliseconds. With whole seconds, many would retry at the same
                # time.
                "Retry-After-Ms": str(math.ceil(1000 * error.retry_after_s)),
                "X-Should-Retry": "true",
            }
            return ErrorReply(error.status, body, headers)
        case RequestTimeoutError():
            body = error_body(str(error), error_type="timeout_error", code="request_timeout")
            # A retry would take just as long.
            return ErrorReply(HTTPStatus.GATEWAY_TIMEOUT, body, {"X-Should-Retry": "false"})
        case EngineDeadError():
            body = error_body(
                "the engine has stopped after an internal error", error_type="server_error", code="engine_dead"
            )
            return ErrorReply(HTTPStatus.INTERNAL_SERVER_ERROR, body)
        case _:
            return ErrorReply(
                HTTPStatus.INTERNAL_SERVER_ERROR, error_body("internal server error", error_type="server_error")
            )


def error_type(status: int) -> str:
    """The default `type` of an error with this status."""
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
