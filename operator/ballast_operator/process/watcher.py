"""Keeps the watches running in a thread of their own: kopf ends its whole event loop when a watch cannot go on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

from ballast_operator.process.handlers import Ring, make_registry, watch

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
LEAVE_S = 20.0


class Watcher:
    """Watches from start() to stop(), begun anew whenever they end or are restarted."""

    def __init__(self, ring: Ring, namespaces: Sequence[str | None]) -> None:
        self._registry = make_registry(ring)
        self._namespaces = namespaces
        self._stopping = threading.Event()
        self._round = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)
        self._thread.start()

    def restart(self) -> None:
        """List everything again and watch from there."""
        self._round.set()

    async def stop(self) -> None:
        """End the watches; waits for them for a while."""
        self._stopping.set()
        self._round.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, LEAVE_S)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            self._round = threading.Event()
            try:
                asyncio.run(watch(self._registry, self._namespaces, self._round))
            except Exception as error:  # noqa: BLE001  whatever kopf gives up on, watching goes on
                log.warning("the watches ended", extra={"error": repr(error), "again_in_s": pause_s})
            if self._round.is_set():
                pause_s = FIRST_PAUSE_S
                continue
            self._stopping.wait(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)
