"""Errors in the envelope of each API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ballast.wire.anthropic.reply import error_detail
from ballast.wire.ollama.reply import error_object

Envelope = Callable[[int, Mapping[str, Any], str], Mapping[str, Any]]
"""(status, body in OpenAI's envelope, id of the request) → the body of the error."""


def _anthropics(status: int, body: Mapping[str, Any], request_id: str) -> Mapping[str, Any]:
    return {"type": "error", "error": error_detail(status, body), "request_id": request_id}


def _ollamas(status: int, body: Mapping[str, Any], request_id: str) -> Mapping[str, Any]:
    del status, request_id
    return error_object(body)


_ENVELOPES: Mapping[str, Envelope] = {"/v1/messages": _anthropics, "/api/": _ollamas}
"""Path prefix → envelope."""


def envelope_of(path: str) -> Envelope | None:
    """The envelope of the API that the path belongs to; None for OpenAI's."""
    return next((each for beginning, each in _ENVELOPES.items() if path.startswith(beginning)), None)
