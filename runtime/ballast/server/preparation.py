"""Bodies on their way to becoming jobs: read, then checked and tokenised off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from starlette.requests import Request

from ballast.engine.admission import Queue, retry_after_s
from ballast.errors import CapacityError, RequestError
from ballast.server.errors import RequestTimeoutError
from ballast.server.exchange import Record, remaining_s
from ballast.server.wanted import TookTooLongError, while_wanted

TEXT_THREADS = 2
"""Tokenising is short and frequent; more threads would take cores from the model."""

RECENT = 0.1
"""Share of the last duration in their mean."""

Result = TypeVar("Result")


class Preparation:
    """The queue before the engine's: bounded, and nothing in it outlives the wish for it."""

    def __init__(
        self, executor: Executor, max_waiting: int, max_bytes: int, timeout_s: float, leaving: asyncio.Future[None]
    ) -> None:
        """`timeout_s` as of a whole request, 0 for none; `leaving` is done when the server can wait for nobody."""
        self._executor = executor
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._leaving = leaving
        self._num_bytes = 0
        """Of bodies that are being read or wait."""
        self._waiting: set[Future[Any]] = set()
        self._mean_s: float | None = None

    @property
    def num_waiting(self) -> int:
        """Bodies that are being checked and tokenised, or wait for that."""
        return len(self._waiting)

    async def run(self, request: Request, record: Record, work: Callable[[bytes], Result]) -> Result:
        """Read the body, then do `work` with it on a thread.

        Raises what `work` raises, RequestError (415) for a body that is compressed, CapacityError when there is too
        much to do, RequestTimeoutError, and ClientDisconnect or ClientGoneError when the client has left.
        """
        num_bytes = 0
        try:
            parts = []
            async with asyncio.timeout(remaining_s(record, self._timeout_s)) as limit:
                async for part in request.stream():
                    num_bytes += len(part)
                    self._num_bytes += len(part)
                    self._check_room()
                    parts.append(part)
            data = b"".join(parts)
            parts.clear()
            _check_encoding(request.headers.get("content-encoding", ""))
            async with while_wanted(request.receive, remaining_s(record, self._timeout_s), self._leaving):
                return await asyncio.wrap_future(self._begin(work, data))
        except TookTooLongError:
            raise RequestTimeoutError(self._timeout_s) from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError(self._timeout_s) from None
        finally:
            self._num_bytes -= num_bytes

    def _begin(self, work: Callable[[bytes], Result], data: bytes) -> Future[Result]:
        def timed() -> Result:
            begin = time.monotonic()
            try:
                return work(data)
            finally:
                took_s = time.monotonic() - begin
                self._mean_s = took_s if self._mean_s is None else self._mean_s + RECENT * (took_s - self._mean_s)

        # A thread that works on a request that nobody wants any more is not stopped, and counts until it is done.
        done = self._executor.submit(timed)
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)
        return done

    def _check_room(self) -> None:
        if self.num_waiting >= self._max_waiting:
            what = f"{self.num_waiting} requests wait to be tokenised"
        elif self._num_bytes > self._max_bytes:
            what = f"{self._num_bytes} bytes wait to be tokenised"
        else:
            return
        wait_s = retry_after_s(Queue(self.num_waiting, 0, TEXT_THREADS, self._mean_s or 0.0))
        raise CapacityError(f"{what}; try again in {wait_s} s", retry_after_s=wait_s)


def _check_encoding(encoding: str) -> None:
    """Refused once the whole body is here: a client that is answered while it sends does not get to read why."""
    if encoding.strip().lower() not in ("", "identity"):
        raise RequestError(
            f"this server does not read a body with Content-Encoding: {encoding[:40]}; send it as it is", status=415
        )
