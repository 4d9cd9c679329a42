"""The asyncio end of requests that were submitted together. Outputs arrive here from the engine thread."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from ballast.engine.request import Output


class Deliveries:
    """The outputs of one step, delivered to each event loop in one hop."""

    def __init__(self) -> None:
        self._items: defaultdict[asyncio.AbstractEventLoop, list[tuple[RequestStream, Output | Exception]]] = (
            defaultdict(list)
        )

    def add(self, stream: RequestStream, item: Output | Exception) -> None:
        """Deliver this to the stream."""
        self._items[stream.loop].append((stream, item))

    def send(self) -> None:
        """Deliver on the streams' own loops. Closed loops have no readers and are skipped."""
        for loop, items in self._items.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, items)


def _deliver(items: Sequence[tuple[RequestStream, Output | Exception]]) -> None:
    for stream, item in items:
        stream.deliver(item)


class RequestStream:
    """Async iterator over the outputs of one or more sequences, in the order in which the engine makes them. It ends
    once each sequence has had its output with a finish reason.

    `__anext__` raises the error that ended a request early: EngineDeadError, CapacityError, or RequestError if no token
    could be sampled. The reader must then `abort` the other sequences.
    Belongs to the event loop that submitted the requests. The queue is bounded by their `max_tokens`.
    """

    def __init__(self, seqs: Sequence[int], abort: Callable[[int], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._seqs = seqs
        self._open = set(range(len(seqs)))
        self._abort = abort
        self._queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue()  # None: aborted

    def deliver(self, item: Output | Exception) -> None:
        """Queue one output, or the error that ends the stream. Runs on the stream's loop."""
        self._queue.put_nowait(item)

    def abort(self, index: int | None = None) -> None:
        """Abort one sequence, or all, in any state. Their KV is free within one step. Idempotent.

        When no sequence is left, the iteration ends, also for a waiting reader.
        """
        aborted = self._open & ({index} if index is not None else self._open)
        self._open -= aborted
        for each in aborted:
            self._abort(self._seqs[each])
        if aborted and not self._open:
            self._queue.put_nowait(None)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Output:
        while True:
            if not self._open and self._queue.empty():
                raise StopAsyncIteration
            item = await self._queue.get()
            if item is None:
                raise StopAsyncIteration
            if isinstance(item, Exception):
                raise item
            if item.index not in self._open:
                continue  # an output from before the abort
            if item.finish_reason is not None:
                self._open.discard(item.index)
            return item
