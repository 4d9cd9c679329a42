"""The queue before the engine's: request bodies are read, then checked and tokenised off the event loop."""

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
    """Bounded; a request leaves it as soon as its client does."""

    def __init__(
        self,
        threads: TextThreads,
        max_waiting: int,
        max_bytes: int,
        timeout_s: float,
        shutting_down: asyncio.Future[None],
    ) -> None:
        """`timeout_s` is the limit for a whole request, 0 for none. `shutting_down` is done once the server must fail
        the requests that still run."""
        self.threads = threads
        self.timeout_s = timeout_s
        self.shutting_down = shutting_down
        self.num_bytes = 0
        """Bytes of bodies that are being read or wait."""
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes

    @contextlib.asynccontextmanager
    async def entered(self, request: Request, record: Record) -> AsyncIterator[QueuedRequest]:
        """The request in the queue, until the block ends.

        Raises what the block raises, RequestTimeoutError when the request's time is over, and CapacityError when the
        server stops.
        """
        queued = QueuedRequest(self, request, record)
        try:
            yield queued
        except DeadlineExceededError:
            raise RequestTimeoutError(self.timeout_s) from None
        except asyncio.CancelledError:
            # By the HTTP server, which stops and waits no longer. The client can still be told.
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
    """A request in the queue: `read` its body, then `work` on it."""

    def __init__(self, queue: TokenizeQueue, request: Request, record: Record) -> None:
        self.num_bytes = 0
        """Bytes of its body that were read."""
        self._queue = queue
        self._request = request
        self._record = record

    async def read(self) -> bytes:
        """The body. Raises RequestError (415) for one that is compressed or not said to be JSON, CapacityError when the
        queue is full, DeadlineExceededError, and ClientDisconnect when the client has left."""
        queue = self._queue
        parts = []
        try:
            async with asyncio.timeout(remaining_s(self._record, queue.timeout_s)) as limit:
                async for part in self._request.stream():
                    self.num_bytes += len(part)
                    queue.num_bytes += len(part)
                    queue.check_capacity()
                    parts.append(part)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError from None
        _check_is_json(self._request.headers.get("content-type", ""))
        _check_encoding(self._request.headers.get("content-encoding", ""))
        return b"".join(parts)

    async def work(self, is_chat: bool, work: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result:
        """What `TextThreads.run` returns. Raises what `work` raises, and as `cancel_on_disconnect` does."""
        queue = self._queue
        left_s = remaining_s(self._record, queue.timeout_s)
        async with cancel_on_disconnect(self._request.receive, left_s, queue.shutting_down):
            return await queue.threads.run(is_chat, work, *arguments, **named)


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
