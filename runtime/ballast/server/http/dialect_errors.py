"""Translates errors on the paths of other APIs than OpenAI's to their envelopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ballast.server.requests.record import Record
from ballast.wire.anthropic.reply import error_detail
from ballast.wire.json_text import to_json
from ballast.wire.ollama.reply import error_object

Translate = Callable[[int, Mapping[str, Any], Record], Mapping[str, Any]]
"""The body of an error, from its status, its body in OpenAI's envelope, and the request's record."""


def _anthropics(status: int, body: Mapping[str, Any], record: Record) -> Mapping[str, Any]:
    return {"type": "error", "error": error_detail(status, body), "request_id": record.request_id}


def _ollamas(status: int, body: Mapping[str, Any], record: Record) -> Mapping[str, Any]:
    del status, record
    return error_object(body)


ENVELOPES: Mapping[str, Translate] = {"/v1/messages": _anthropics, "/api/": _ollamas}
"""By the beginning of the path."""


class DialectErrors:
    """Middleware that puts every error on these paths into the envelope of its API, wherever it was raised."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["path"].removeprefix(self._root_path) if scope["type"] == "http" else ""
        envelope = next((each for beginning, each in ENVELOPES.items() if path.startswith(beginning)), None)
        if envelope is None:
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        parts: list[bytes] = []

        async def translate(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is None:
                await send(message)
                return
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            record: Record = scope["state"]["record"]
            body = to_json(envelope(start["status"], orjson.loads(b"".join(parts) or b"{}"), record))
            MutableHeaders(scope=start)["content-length"] = str(len(body))
            await send(start)
            await send({"type": "http.response.body", "body": body, "more_body": False})

        await self._app(scope, receive, translate)
