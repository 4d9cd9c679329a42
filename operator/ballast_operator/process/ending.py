"""Work of an event loop that ends when a thread says so, although it may lose a cancelling or two."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

POLL_S = 0.2
"""asyncio cannot wait for a thread's flag without a thread that waits."""
GRACE_S = 6.0
"""kopf itself gives what it leaves behind 5 s."""
PERSIST_S = 0.5
PATIENCE_S = 10.0
"""Before tasks that do not end are named in the log."""


async def run_until_told(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]], told: threading.Event, grace_s: float = GRACE_S
) -> None:
    """Run `work` until it ends or `told` is set; return when no other task of this event loop is left.

    The work is handed an event that asks it to end. What is left of it after `grace_s` is cancelled again and again:
    once is not enough for kopf 1.45.2, whose watch goes on with another request when it and the task that it takes the
    sign to pause from are cancelled before it has its answer's headers (`_cogs/clients/api.py`, `stream`). Raises what
    the work raises.
    """
    leave = asyncio.Event()
    working = asyncio.create_task(work(leave))
    while not (told.is_set() or working.done()):
        await asyncio.wait((working,), timeout=POLL_S)
    leave.set()
    await asyncio.wait((working,), timeout=grace_s)
    waited_s = 0.0
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=PERSIST_S)
        waited_s += PERSIST_S
        if waited_s - PERSIST_S < PATIENCE_S <= waited_s:
            log.warning("tasks do not end", extra={"tasks": ", ".join(sorted(task.get_name() for task in others))})
    if not working.cancelled():
        working.result()
