"""Work for a client goes on while the client is there, the time allows, and the server stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive

from ballast.errors import CapacityError

RETRY_AFTER_S = 5


class ClientGoneError(Exception):
    """The client left before its reply was complete."""


class TookTooLongError(Exception):
    """The time limit of `while_wanted` has passed."""


@contextlib.asynccontextmanager
async def while_wanted(receive: Receive, timeout_s: float | None, leaving: asyncio.Future[None]) -> AsyncIterator[None]:
    """Cancel the block when the client leaves (ClientGoneError), when the server does (CapacityError), or after
    `timeout_s` (TookTooLongError)."""
    reason: Exception = TookTooLongError()
    limit = asyncio.timeout(timeout_s)

    def end(why: Exception) -> None:
        nonlocal reason
        reason = why
        # Already past: expires at the loop's next turn, and only if the block is still running.
        with contextlib.suppress(RuntimeError):
            limit.reschedule(asyncio.get_running_loop().time())

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass  # a body that nobody asked for
        end(ClientGoneError())

    def on_leaving(_: object) -> None:
        end(CapacityError("the server is shutting down", retry_after_s=RETRY_AFTER_S, status=503))

    leaving.add_done_callback(on_leaving)
    watcher = asyncio.create_task(watch())
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise reason from None
    finally:
        watcher.cancel()
        leaving.remove_done_callback(on_leaving)
