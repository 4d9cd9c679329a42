"""Translates errors of other APIs than OpenAI's to the envelopes of those APIs."""

from __future__ import annotations

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ballast.server.requests.record import Record
from ballast.wire.envelopes import envelope_of
from ballast.wire.json_text import to_json


class DialectErrors:
    """Middleware that puts every error on these paths into the envelope of its API, wherever it was raised."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["path"].removeprefix(self._root_path) if scope["type"] == "http" else ""
        envelope = envelope_of(path)
        if envelope is None:
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        chunks: list[bytes] = []

        async def translate(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is None:
                await send(message)
                return
            chunks.append(message.get("body", b""))
            if message.get("more_body"):
                return
            record: Record = scope["state"]["record"]
            body = to_json(envelope(start["status"], orjson.loads(b"".join(chunks) or b"{}"), record.request_id))
            MutableHeaders(scope=start)["content-length"] = str(len(body))
            await send(start)
            await send({"type": "http.response.body", "body": body, "more_body": False})

        await self._app(scope, receive, translate)
