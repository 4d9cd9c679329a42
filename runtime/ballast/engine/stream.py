"""The asyncio end of a request: outputs arrive here from the engine thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ballast.engine.request import Output


class RequestStream:
    """Async iterator over one request's outputs. Ends after the output that carries a finish reason.

    Raises from `__anext__` what ended the request against its will: EngineDeadError, CapacityError, or RequestError
    (500) where the model left nothing to sample.
    Belongs to the event loop that submitted the request. The queue is bounded by the request's `max_tokens`.
    """

    def __init__(self, seq: int, abort: Callable[[int], None]) -> None:
        self.seq = seq
        self.loop = asyncio.get_running_loop()
        self._abort = abort
        self._queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue()  # None: given up
        self._ended = False

    def deliver(self, item: Output | Exception) -> None:
        """Hand over one output or the error that ends the stream. Runs on the stream's loop."""
        self._queue.put_nowait(item)

    def abort(self) -> None:
        """Give the request up in whatever state it is; its KV is free within one step. Idempotent.

        Whoever waits for the next output gets the end of the iteration.
        """
        if not self._ended:
            self._ended = True
            self._abort(self.seq)
            self._queue.put_nowait(None)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Output:
        if self._ended and self._queue.empty():
            raise StopAsyncIteration
        item = await self._queue.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            self._ended = True
            raise item
        self._ended = self._ended or item.finish_reason is not None
        return item
