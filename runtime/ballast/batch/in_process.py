"""Asks the server's application without a socket."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message

from ballast.batch.lines import Answer


async def ask(app: ASGIApp, path: str, body: bytes) -> Answer:
    """The answer to a POST of the JSON `body`."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 0),
    }
    to_send: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, found, parts = 0, Headers(), []

    async def receive() -> Message:
        if to_send:
            return to_send.pop()
        await asyncio.get_running_loop().create_future()  # who asks never leaves; the application ends this wait
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        nonlocal status, found
        if message["type"] == "http.response.start":
            status, found = message["status"], Headers(raw=message["headers"])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    assert status, "every request is answered"
    return Answer(status, found.get("x-request-id", ""), b"".join(parts), float(found.get("retry-after", 0)))
