"""Runs the watches in a separate thread, because kopf ends its whole event loop when a watch fails permanently."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ballast_operator.cluster.kinds import Kind
from ballast_operator.process.handlers import EventCallback, make_registry, watch
from ballast_operator.process.loop_shutdown import run_until_stopped

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 10.0
LEAVE_S = 10.0


class Watcher:
    """Keeps watches running from start() to stop(): they start again when they end or are restarted.

    `kinds` is called each time.
    """

    def __init__(
        self, on_event: EventCallback, kinds: Callable[[], Iterable[Kind]], namespaces: Sequence[str | None]
    ) -> None:
        self._on_event, self._kinds, self._namespaces = on_event, kinds, namespaces
        self._stopping = threading.Event()
        self._round = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to watch."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stopping,), name="watches", daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """List everything again and watch from there."""
        self._round.set()

    async def stop(self) -> None:
        """End the watches and wait for their thread, at most LEAVE_S."""
        self._stopping.set()
        self._round.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, LEAVE_S)

    def _run(self, stopping: threading.Event) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            self._round = round_over = threading.Event()
            if stopping.is_set():  # checked after _round is set, so that a stop() in between is seen
                return
            began = time.monotonic()
            try:
                work = partial(watch, make_registry(self._on_event, self._kinds()), self._namespaces)
                asyncio.run(run_until_stopped(work, round_over))
            except Exception as error:  # noqa: BLE001  any error of kopf; the watches start again
                log.warning("the watches ended", extra={"error": repr(error), "again_in_s": pause_s})
            if round_over.is_set() or time.monotonic() - began > MAX_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            if not round_over.is_set():
                stopping.wait(pause_s)
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
