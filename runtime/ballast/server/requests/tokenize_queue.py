"""Turns request bodies into jobs: reads them, then checks and tokenises them off the event loop."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from starlette.requests import Request

from ballast.engine.retry_schedule import RetrySchedule
from ballast.errors import CapacityError, RequestError, shown
from ballast.server.requests.cancellation import DeadlineExceededError, cancel_on_disconnect
from ballast.server.requests.record import Record, remaining_s
from ballast.wire.errors import RequestTimeoutError

TEXT_THREADS = 2
"""Tokenising is short and frequent, and more threads would take cores from the model."""

_JSON = re.compile(r"application/(json|[\w!#$&^.+-]+\+json)[ \t]*(;.*)?", re.IGNORECASE)

Result = TypeVar("Result")


class TokenizeQueue:
    """The queue before the engine's. It is bounded, and a request leaves it as soon as its client does."""

    def __init__(
        self,
        executor: Executor,
        chat_executor: Executor,
        max_waiting: int,
        max_bytes: int,
        timeout_s: float,
        shutting_down: asyncio.Future[None],
    ) -> None:
        """`chat_executor` runs what renders a chat template. `timeout_s` is the limit for a whole request, 0 for none.
        `shutting_down` is done once the server must fail the requests that still run."""
        self._executor = executor
        self._chat_executor = chat_executor
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._shutting_down = shutting_down
        self._num_bytes = 0
        """Bytes of bodies that are being read or wait."""
        self._waiting: set[Future[Any]] = set()
        self.num_arriving = 0
        """Requests whose bodies were read and are being checked or tokenised."""
        self._retries = RetrySchedule(TEXT_THREADS)

    @property
    def num_waiting(self) -> int:
        """Number of bodies that are being checked and tokenised, or wait for that."""
        return len(self._waiting)

    async def run(
        self, request: Request, record: Record, work: Callable[[bytes], Result], *, is_chat: bool = False
    ) -> Result:
        """Read the body, and return `work(body)`, which runs on another thread. `is_chat`: it may render a template.

        Raises what `work` raises, RequestError (415) for a body that is compressed or not said to be JSON,
        CapacityError when the queue is full or the server stops, RequestTimeoutError, and ClientDisconnect or
        ClientGoneError when the client has left.
        """
        num_bytes = num_arriving = 0
        try:
            parts = []
            async with asyncio.timeout(remaining_s(record, self._timeout_s)) as limit:
                async for part in request.stream():
                    num_bytes += len(part)
                    self._num_bytes += len(part)
                    self._check_capacity()
                    parts.append(part)
            num_arriving = 1
            self.num_arriving += num_arriving
            data = b"".join(parts)
            parts.clear()
            _check_is_json(request.headers.get("content-type", ""))
            _check_encoding(request.headers.get("content-encoding", ""))
            async with cancel_on_disconnect(request.receive, remaining_s(record, self._timeout_s), self._shutting_down):
                executor = self._chat_executor if is_chat else self._executor
                return await asyncio.wrap_future(self._begin(executor, work, data))
        except DeadlineExceededError:
            raise RequestTimeoutError(self._timeout_s) from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError(self._timeout_s) from None
        except asyncio.CancelledError:
            # By the HTTP server, which stops and waits no longer. The client can still be told.
            raise CapacityError.shutting_down() from None
        finally:
            self.num_arriving -= num_arriving
            self._num_bytes -= num_bytes

    def _begin(self, executor: Executor, work: Callable[[bytes], Result], data: bytes) -> Future[Result]:
        def timed() -> Result:
            begin = time.monotonic()
            try:
                return work(data)
            finally:
                self._retries.ran(time.monotonic() - begin, num_ended=1)

        # A thread cannot be stopped when its client leaves; its request counts until it is done.
        done = executor.submit(timed)
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)
        return done

    def _check_capacity(self) -> None:
        if self.num_waiting >= self._max_waiting:
            what = f"{self.num_waiting} requests wait to be tokenised"
        elif self._num_bytes > self._max_bytes:
            what = f"{self._num_bytes} bytes wait to be tokenised"
        else:
            return
        raise CapacityError.busy(what, retry_after_s=self._retries.refuse(time.monotonic()))


def _check_is_json(content_type: str) -> None:
    """Called once the whole body is read, since a client that is answered while it sends may not see the answer.

    A browser asks the server first before it sends JSON for a page of another origin; text, forms and what has no
    type it just sends.
    """
    if not _JSON.fullmatch(content_type):
        given = f"has Content-Type: {shown(content_type)}" if content_type else "has no Content-Type"
        raise RequestError(
            f"this body {given}; JSON is needed, and must say so: with curl -H 'Content-Type: application/json'",
            code="unsupported_media_type",
            status=415,
        )


def _check_encoding(encoding: str) -> None:
    """Called once the whole body is read, since a client that is answered while it sends may not see the answer."""
    if encoding.strip().lower() not in ("", "identity"):
        raise RequestError(
            f"this server does not read a body with Content-Encoding: {encoding[:40]}; send it as it is", status=415
        )
