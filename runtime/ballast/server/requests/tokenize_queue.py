"""The queue in front of the engine's: bodies are read, then checked and tokenised off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from ballast.errors import CapacityError, RequestError, shown
from ballast.generation.cancellation import DeadlineExceededError
from ballast.generation.text_threads import TextThreads
from ballast.server.requests.cancellation import cancel_on_disconnect
from ballast.server.requests.record import Record, remaining_s
from ballast.wire.errors import RequestTimeoutError

_JSON = re.compile(r"application/(json|[\w!#$&^.+-]+\+json)[ \t]*(;.*)?", re.IGNORECASE)

P = ParamSpec("P")
Result = TypeVar("Result")


class TokenizeQueue:
    """A bounded queue; a request leaves it when its client disconnects."""

    def __init__(
        self,
        threads: TextThreads,
        max_waiting: int,
        max_bytes: int,
        timeout_s: float,
        shutting_down: asyncio.Future[None],
    ) -> None:
        """`timeout_s` is the limit for a whole request, 0 for none. `shutting_down` completes when the server must fail
        the requests that still run."""
        self.threads = threads
        self.timeout_s = timeout_s
        self.shutting_down = shutting_down
        self.num_bytes = 0
        """Bytes of bodies in the queue."""
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes

    @contextlib.asynccontextmanager
    async def entered(self, request: Request, record: Record) -> AsyncIterator[QueuedRequest]:
        """Keep the request in the queue until the block ends.

        Raises the block's errors, RequestTimeoutError when the request's time limit passes, and CapacityError when the
        server stops.
        """
        queued = QueuedRequest(self, request, record)
        try:
            yield queued
        except DeadlineExceededError:
            raise RequestTimeoutError(self.timeout_s) from None
        except asyncio.CancelledError:
            # The HTTP server stops and waits no longer. The client can still get an error.
            raise CapacityError.shutting_down() from None
        finally:
            self.num_bytes -= queued.num_bytes

    def check_capacity(self) -> None:
        """Raise CapacityError when the queue is full."""
        if self.threads.num_waiting >= self._max_waiting:
            what = f"{self.threads.num_waiting} requests wait to be tokenised"
        elif self.num_bytes > self._max_bytes:
            what = f"{self.num_bytes} bytes wait to be tokenised"
        else:
            return
        raise CapacityError.busy(what, retry_after_s=self.threads.retries.refuse(time.monotonic()))


class QueuedRequest:
    """A request in the queue: call `read` for its body, then `work`."""

    def __init__(self, queue: TokenizeQueue, request: Request, record: Record) -> None:
        self.num_bytes = 0
        """Bytes read from its body."""
        self._queue = queue
        self._request = request
        self._record = record

    async def read(self) -> bytes:
        """The body. Raises RequestError (415) if it is compressed or not declared as JSON, CapacityError when the queue
        is full, DeadlineExceededError, and ClientDisconnect if the client has disconnected."""
        queue = self._queue
        chunks = []
        try:
            async with asyncio.timeout(remaining_s(self._record, queue.timeout_s)) as limit:
                async for chunk in self._request.stream():
                    self.num_bytes += len(chunk)
                    queue.num_bytes += len(chunk)
                    queue.check_capacity()
                    chunks.append(chunk)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError from None
        _check_is_json(self._request.headers.get("content-type", ""))
        _check_encoding(self._request.headers.get("content-encoding", ""))
        return b"".join(chunks)

    async def work(self, is_chat: bool, work: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result:
        """The result of `TextThreads.run`. Raises the errors of `work` and of `cancel_on_disconnect`."""
        queue = self._queue
        left_s = remaining_s(self._record, queue.timeout_s)
        async with cancel_on_disconnect(self._request.receive, left_s, queue.shutting_down):
            return await queue.threads.run(is_chat, work, *arguments, **named)


def _check_is_json(content_type: str) -> None:
    """Called after the whole body is read, because a client may not see an answer while it sends.

    For JSON, a browser sends a preflight before a request of a page of another origin. It sends text, forms and bodies
    without a type directly.
    """
    if not _JSON.fullmatch(content_type):
        given = f"has Content-Type: {shown(content_type)}" if content_type else "has no Content-Type"
        raise RequestError(
            f"this body {given}; send JSON and declare it: with curl -H 'Content-Type: application/json'",
            code="unsupported_media_type",
            status=415,
        )


def _check_encoding(encoding: str) -> None:
    """Called after the whole body is read, because a client may not see an answer while it sends."""
    if encoding.strip().lower() not in ("", "identity"):
        raise RequestError(
            f"this server does not accept Content-Encoding: {encoding[:40]}; send the body uncompressed", status=415
        )
