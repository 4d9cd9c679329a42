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
    async with bounded(timeout_s, shutting_down) as end:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass  # an unused chunk of the body
            end(ClientGoneError())

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()
