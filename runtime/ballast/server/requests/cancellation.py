"""Cancels work for a client when the client leaves, its time is over, or the server shuts down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive

from ballast.errors import CapacityError


class ClientGoneError(Exception):
    """The client left before its reply was complete."""


class DeadlineExceededError(Exception):
    """The time limit of `cancel_on_disconnect` has passed."""


@contextlib.asynccontextmanager
async def cancel_on_disconnect(
    receive: Receive, timeout_s: float | None, shutting_down: asyncio.Future[None]
) -> AsyncIterator[None]:
    """Run the block until the client disconnects, the server shuts down, or `timeout_s` seconds have passed.

    Then the block is cancelled, and ClientGoneError, CapacityError or DeadlineExceededError is raised in its place.
    """
    reason: Exception = DeadlineExceededError()
    limit = asyncio.timeout(timeout_s)

    def end(why: Exception) -> None:
        nonlocal reason
        reason = why
        # A deadline in the past takes effect at the loop's next turn, if the block still runs then.
        with contextlib.suppress(RuntimeError):
            limit.reschedule(asyncio.get_running_loop().time())

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass  # a part of the body that was not needed
        end(ClientGoneError())

    def on_shutdown(_: object) -> None:
        end(CapacityError.shutting_down())

    shutting_down.add_done_callback(on_shutdown)
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
        shutting_down.remove_done_callback(on_shutdown)
