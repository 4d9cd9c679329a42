"""One generation over one HTTP exchange: admitted before the first byte goes out, given up when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ballast.server.choice import Piece
from ballast.server.errors import RequestTimeoutError, error_reply
from ballast.server.generation import Generation, admitted
from ballast.server.job import Job
from ballast.server.openai_reply import Whole
from ballast.server.port import EnginePort
from ballast.server.usage import Counts, Progress, Usage
from ballast.server.wanted import ClientGoneError, TookTooLongError, while_wanted
from ballast.text.tokenizer import Tokenizer

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
QUICK_WEIGHT = 1000
"""What the event loop writes itself, in tokens and alternatives: about a millisecond's work."""

KEEP_ALIVE = b": keep-alive\n\n"
JSON_HEADERS = [(b"content-type", b"application/json")]


class Reply(Protocol):
    """How what is generated is said: frames for a stream, or one body."""

    def opening(self, counts: Counts) -> bytes:
        """Frames before everything else."""

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """What a piece adds, its finish reason aside."""

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """How far a prompt is."""

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """Why a choice ended."""

    def end(self, counts: Counts) -> bytes:
        """The last frames."""

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last frames of a stream that failed; `body` is the error in OpenAI's envelope."""

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The body where nothing streams."""


@dataclass(slots=True)
class Record:
    """What became of one request, for the access log and the metrics. Never any text."""

    request_id: str
    started: float = field(default_factory=time.monotonic)
    status: int = 0
    outcome: str = ""
    """Set by whoever knows better than the status code: client_gone, timeout, error."""
    endpoint: str = "other"
    fields: dict[str, Any] = field(default_factory=dict)

    def note_usage(self, usage: Usage) -> None:
        """Remember what the request cost."""
        self.fields["prompt_tokens"] = usage.prompt_tokens
        self.fields["completion_tokens"] = usage.completion_tokens
        self.fields["cached_tokens"] = usage.cached_tokens


def remaining_s(record: Record, timeout_s: float) -> float | None:
    """Of the time that a request may take in all; None without a limit."""
    return max(0.0, record.started + timeout_s - time.monotonic()) if timeout_s else None


class Exchange(Response):
    """The response to a generation request, streamed or whole.

    Raises, before anything was sent, what is to become an HTTP error; afterwards errors travel in the stream.
    """

    def __init__(
        self,
        engine: EnginePort,
        tokenizer: Tokenizer,
        job: Job,
        reply: Reply,
        record: Record,
        *,
        stream: bool,
        timeout_s: float,
        leaving: asyncio.Future[None],
        keep_alive_s: float,
    ) -> None:
        """`leaving` is done when the server can wait for nobody any more. A stream says every `keep_alive_s` of silence
        that it lives; before its first token that means that what fails later fails in the stream."""
        super().__init__()
        self._engine = engine
        self._tokenizer = tokenizer
        self._job = job
        self._reply = reply
        self._record = record
        self._stream = stream
        self._timeout_s = timeout_s
        self._leaving = leaving
        self._keep_alive_s = keep_alive_s
        self._started = False
        self._last_sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the generation and send what comes of it."""
        try:
            with admitted(self._engine, self._job, self._record.request_id, self._tokenizer) as generation:
                try:
                    async with while_wanted(receive, remaining_s(self._record, self._timeout_s), self._leaving):
                        if self._stream:
                            async with self._kept_alive(send):
                                last = await self._send_stream(generation, send)
                            await send({"type": "http.response.body", "body": last, "more_body": False})
                        else:
                            await self._send_whole(generation, send)
                finally:
                    self._record.note_usage(generation.usage)
                    self._record.fields["finish_reason"] = generation.finish_reason
        except ClientGoneError:
            self._record.outcome = "client_gone"
            self._record.status = self._record.status or 499
        except TookTooLongError:
            await self._fail(RequestTimeoutError(self._timeout_s), send)
        except Exception as error:  # noqa: BLE001  whatever it was, the client is owed an answer in its own format
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

    async def _send_whole(self, generation: Generation, send: Send) -> None:
        choices = [Whole(index) for index in range(len(generation.choices))]
        while not generation.finished:
            piece = await self._next_piece(generation)
            choices[piece.index].add(piece)
        body = await _written(sum(map(_weight, choices)), self._reply.whole, choices, generation)
        length = (b"content-length", str(len(body)).encode())
        await self._start(send, [*JSON_HEADERS, length])
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_stream(self, generation: Generation, send: Send) -> bytes:
        """Send everything but the last frames, which are returned."""
        reply = self._reply
        frames = b""
        first = True
        while not generation.finished:
            if frames:
                await self._send_part(send, frames)
            piece = await self._next_piece(generation)
            frames = b""
            if first:
                first = False
                if not self._started:
                    await self._start(send, STREAM_HEADERS)
                frames = reply.opening(generation)
            frames += await _written(_weight(piece), reply.piece, piece, generation)
            if generation.progress is not None:
                frames += reply.progress(generation.progress, generation)
            if piece.finish_reason is not None:
                frames += reply.finish(piece, generation)
        return frames + reply.end(generation)

    async def _send_part(self, send: Send, frames: bytes) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": frames, "more_body": True})

    @contextlib.asynccontextmanager
    async def _kept_alive(self, send: Send) -> AsyncIterator[None]:
        """Break every long silence with a comment, which clients skip."""

        async def beat() -> None:
            while True:
                silent_s = time.monotonic() - self._last_sent
                if silent_s < self._keep_alive_s:
                    await asyncio.sleep(self._keep_alive_s - silent_s)
                    continue
                if not self._started:
                    await self._start(send, STREAM_HEADERS)
                await self._send_part(send, KEEP_ALIVE)

        async def beat_while_there() -> None:
            # A client that has gone is noticed where its departure is watched for.
            with contextlib.suppress(ClientGoneError):
                await beat()

        beating = asyncio.create_task(beat_while_there())
        try:
            yield
        finally:
            beating.cancel()

    async def _next_piece(self, generation: Generation) -> Piece:
        piece = await generation.next_piece()
        self._record.fields.setdefault("first_token_s", round(time.monotonic() - self._record.started, 4))
        return piece

    async def _start(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})


def _weight(said: Piece | Whole) -> int:
    """How much there is to write, about."""
    return len(said.token_ids) + sum(1 + (len(token.scores.top) if token.scores else 0) for token in said.tokens)


async def _written(weight: int, write: Callable[..., bytes], *said: Any) -> bytes:
    """What `write` makes of it, on another thread where that takes long."""
    return write(*said) if weight <= QUICK_WEIGHT else await asyncio.to_thread(write, *said)
