"""Work of an event loop that ends for certain when a thread says so, whatever it makes of being cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

POLL_S = 0.2
"""asyncio cannot wait for a thread's flag without a thread that waits."""
GRACE_S = 3.0
PERSIST_S = 0.5


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
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=PERSIST_S)
    if not working.cancelled():
        working.result()
