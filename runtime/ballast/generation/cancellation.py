"""Cancels work when its time limit passes, when the process shuts down, or for another reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from ballast.errors import CapacityError


class DeadlineExceededError(Exception):
    """The time limit of `bounded` has passed."""


@contextlib.asynccontextmanager
async def bounded(
    timeout_s: float | None, shutting_down: asyncio.Future[None]
) -> AsyncIterator[Callable[[Exception], None]]:
    """Run the block until the process shuts down, `timeout_s` seconds have passed, or the block calls the given
    function with an error.

    Then the block is cancelled, and CapacityError, DeadlineExceededError or that error is raised instead.
    """
    reason: Exception = DeadlineExceededError()
    limit = asyncio.timeout(timeout_s)

    def end(why: Exception) -> None:
        nonlocal reason
        reason = why
        # A deadline in the past takes effect in the loop's next iteration, if the block still runs then.
        with contextlib.suppress(RuntimeError):
            limit.reschedule(asyncio.get_running_loop().time())

    def on_shutdown(_: object) -> None:
        end(CapacityError.shutting_down())

    shutting_down.add_done_callback(on_shutdown)
    try:
        async with limit:
            yield end
    except TimeoutError:
        if not limit.expired():
            raise
        raise reason from None
    finally:
        shutting_down.remove_done_callback(on_shutdown)
