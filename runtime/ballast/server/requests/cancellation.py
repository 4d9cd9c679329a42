"""Cancels work for a client when it disconnects, its time limit passes, or the server shuts down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive

from ballast.generation.cancellation import bounded


class ClientGoneError(Exception):
    """The client disconnected before its reply was complete."""


@contextlib.asynccontextmanager
async def cancel_on_disconnect(
    receive: Receive, timeout_s: float | None, shutting_down: asyncio.Future[None]
) -> AsyncIterator[None]:
    """Run the block as `bounded` does, and only until the client disconnects: then ClientGoneError is raised
    instead."""
    is_gone = False
    async with bounded(timeout_s, shutting_down) as end:

        async def watch() -> None:
            nonlocal is_gone
            while (await receive())["type"] != "http.disconnect":
                pass  # an unused chunk of the body
            is_gone = True
            end(ClientGoneError())

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()
        # The block may end before it is cancelled: after the connection is lost, uvicorn ignores what is sent.
        if is_gone:
            raise ClientGoneError
