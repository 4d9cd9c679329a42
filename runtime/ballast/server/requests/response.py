"""The HTTP response of one generation. It is admitted before the first byte is sent, and aborted when the client
disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ballast.generation.admitted_job import AdmittedJob, admitted
from ballast.generation.cancellation import DeadlineExceededError
from ballast.generation.endpoints import Prepared
from ballast.generation.engine_port import EnginePort
from ballast.generation.job import Job
from ballast.server.requests.cancellation import ClientGoneError, cancel_on_disconnect
from ballast.server.requests.record import Record, remaining_s
from ballast.text.tokenizer import Tokenizer
from ballast.wire.errors import RequestTimeoutError, error_reply
from ballast.wire.reply import written

STREAM_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Headers of all streams, in addition to the content type."""
JSON_HEADERS = [(b"content-type", b"application/json")]


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """The data that all responses of a server share."""

    engine: EnginePort
    tokenizer: Tokenizer
    shutting_down: asyncio.Future[None]
    """Completed when the server must fail the requests that still run."""
    timeout_s: float
    """Time limit of a request from its arrival; 0: no limit."""
    keep_alive_s: float
    """A stream that has been silent for this long sends `Framing.keep_alive`. If that happens before its first token,
    the status line is already sent, and later errors are sent in the stream."""


class GenerationResponse(Response):
    """The response to a generation request, streamed or whole.

    An error before the first byte is raised and becomes an HTTP error. Later errors are sent in the stream.
    """

    def __init__(
        self,
        context: ResponseContext,
        job: Job,
        prepared: Prepared,
        record: Record,
    ) -> None:
        """`job`: the job of `prepared` with its granted priority."""
        super().__init__()
        self._context = context
        self._job = job
        self._reply = prepared.reply
        self._record = record
        self._stream = prepared.stream
        self._framing = prepared.framing
        self._started = False
        self._last_sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the generation and send its result."""
        context = self._context
        try:
            with admitted(context.engine, self._job, self._record.request_id, context.tokenizer) as generation:
                try:
                    left_s = remaining_s(self._record, context.timeout_s)
                    async with cancel_on_disconnect(receive, left_s, context.shutting_down):
                        if self._stream:
                            async with self._keep_alive(send):
                                last = await self._send_stream(generation, send)
                            await send({"type": "http.response.body", "body": last, "more_body": False})
                        else:
                            await self._send_whole(generation, send)
                finally:
                    if generation.first_piece_s:
                        self._record.fields["first_token_s"] = round(generation.first_piece_s - self._record.started, 4)
                    self._record.phases = generation.phases
                    self._record.note_usage(generation.usage)
                    self._record.fields["finish_reason"] = generation.finish_reason
        except ClientGoneError:
            self._record.outcome = "client_gone"
            self._record.status = self._record.status or 499
        except DeadlineExceededError:
            await self._fail(RequestTimeoutError(context.timeout_s), send)
        except Exception as error:  # noqa: BLE001  for any error, the client must get an answer in its own format
            await self._fail(error, send)

    async def _fail(self, error: Exception, send: Send) -> None:
        if not self._started:
            raise error
        reply = error_reply(error)
        self._record.outcome = "timeout" if isinstance(error, RequestTimeoutError) else "error"
        self._record.fields["error"] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(ClientGoneError):
            last = self._reply.error(reply.status, reply.body)
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_whole(self, generation: AdmittedJob, send: Send) -> None:
        choices = await generation.whole()
        body = await written(self._reply.whole, choices, generation)
        length = (b"content-length", str(len(body)).encode())
        await self._start(send, [*JSON_HEADERS, length])
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_stream(self, generation: AdmittedJob, send: Send) -> bytes:
        """Send all frames except the last ones, which are returned."""
        reply = self._reply
        frames = b""
        first = True
        while not generation.finished:
            if frames:
                await self._send_frames(send, frames)
            piece = await generation.next_piece()
            frames = b""
            if first:
                first = False
                if not self._started:
                    await self._start_stream(send)
                frames = reply.opening(generation)
            frames += await written(reply.piece, piece, generation)
            if generation.progress is not None:
                frames += reply.progress(generation.progress, generation)
            if piece.finish_reason is not None:
                frames += reply.finish(piece, generation)
        return frames + reply.end(generation)

    async def _send_frames(self, send: Send, frames: bytes) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": frames, "more_body": True})
        # Pieces that are ready do not wait. Without a pause here, the loop would neither notice a lost connection nor
        # serve other clients until the last of them is sent.
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _keep_alive(self, send: Send) -> AsyncIterator[None]:
        """Send a frame that clients skip after each long silence of the stream."""

        async def send_frames() -> None:
            while True:
                silent_s = time.monotonic() - self._last_sent
                if silent_s < self._context.keep_alive_s:
                    await asyncio.sleep(self._context.keep_alive_s - silent_s)
                    continue
                if not self._started:
                    await self._start_stream(send)
                await self._send_frames(send, self._framing.keep_alive())

        async def send_until_gone() -> None:
            # `cancel_on_disconnect` reports a disconnected client.
            with contextlib.suppress(ClientGoneError):
                await send_frames()

        sending = asyncio.create_task(send_until_gone())
        try:
            yield
        finally:
            sending.cancel()

    async def _start_stream(self, send: Send) -> None:
        await self._start(send, [(b"content-type", self._framing.media_type.encode()), *STREAM_HEADERS])

    async def _start(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})
