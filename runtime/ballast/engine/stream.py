"""The asyncio end of requests that were submitted together: outputs arrive here from the engine thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ballast.engine.request import Output


class RequestStream:
    """Async iterator over the outputs of one or more sequences, in the order in which the engine made them. Ends after
    the outputs that carry a finish reason, one a sequence.

    Raises from `__anext__` what ended a request against its will: EngineDeadError, CapacityError, or RequestError
    where nothing could be sampled; whoever reads then gives the others up with `abort`.
    Belongs to the event loop that submitted the requests. The queue is bounded by their `max_tokens`.
    """

    def __init__(self, seqs: Sequence[int], abort: Callable[[int], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._seqs = seqs
        self._open = set(range(len(seqs)))
        self._abort = abort
        self._queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue()  # None: given up

    def deliver(self, item: Output | Exception) -> None:
        """Hand over one output or the error that ends the stream. Runs on the stream's loop."""
        self._queue.put_nowait(item)

    def abort(self, index: int | None = None) -> None:
        """Give one sequence up, or all, in whatever state it is; its KV is free within one step. Idempotent.

        Whoever waits for the next output gets the end of the iteration when none is left.
        """
        given_up = self._open & ({index} if index is not None else self._open)
        self._open -= given_up
        for each in given_up:
            self._abort(self._seqs[each])
        if given_up and not self._open:
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
                continue  # it was on its way when its sequence was given up
            if item.finish_reason is not None:
                self._open.discard(item.index)
            return item
