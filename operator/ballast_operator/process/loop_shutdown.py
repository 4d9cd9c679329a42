"""Runs work in an event loop until a thread requests a stop, even if the work ignores some cancellations."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

POLL_S = 0.2
"""Interval of checks of the thread's flag: asyncio cannot wait for it without another thread."""
GRACE_S = 6.0
"""Time before tasks are cancelled; kopf gives its own tasks 5 s."""
PERSIST_S = 0.5
"""Time between cancellations."""
PATIENCE_S = 10.0
"""Time after which tasks that do not end are logged by name."""


async def run_until_stopped(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    stop_requested: threading.Event,
    grace_s: float = GRACE_S,
) -> None:
    """Run `work` until it ends or `stop_requested` is set; return when no other task of this event loop is left.

    The work is handed an event that asks it to end. Tasks that are left after `grace_s` are cancelled again and again.
    Once is not enough for kopf 1.45.2: a watch that is cancelled together with its pause signal, before the response's
    headers have come, swallows the cancellation and sends another request (`_cogs/clients/api.py`, `stream`).

    Raises what the work raises.
    """
    leave = asyncio.Event()
    working = asyncio.create_task(work(leave))
    while not (stop_requested.is_set() or working.done()):
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
