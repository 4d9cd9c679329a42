"""One admitted request: the engine's tokens become text, and whatever happens its place in the engine is given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ballast.engine.request import FinishReason, Output, Request
from ballast.server import openai_reply
from ballast.server.openai_reply import Usage
from ballast.server.port import EnginePort, OutputStream
from ballast.server.prepare import Job
from ballast.text.detokenizer import Detokenizer
from ballast.text.tokenizer import Tokenizer


@contextmanager
def admitted(engine: EnginePort, job: Job, request_id: str, tokenizer: Tokenizer) -> Iterator[Generation]:
    """Submit the job; leaving the block by any road frees it. Raises what `EnginePort.submit` raises."""
    stream = engine.submit(Request(request_id, job.prompt_ids, job.sampling))
    try:
        yield Generation(stream, job, tokenizer)
    finally:
        stream.abort()


class Generation:
    """Text and counts of one request."""

    def __init__(self, stream: OutputStream, job: Job, tokenizer: Tokenizer) -> None:
        self._stream = stream
        self._job = job
        self._detokenizer = Detokenizer(tokenizer, job.stop)
        self._opening = job.opening
        self._cached_tokens = 0
        self.completion_tokens = 0
        self.finish_reason: openai_reply.FinishReason | None = None
        """Set by the last piece."""

    @property
    def usage(self) -> Usage:
        """What the request has cost so far."""
        return Usage(len(self._job.prompt_ids), self.completion_tokens, self._cached_tokens)

    async def next_piece(self) -> str:
        """More text, of one output; empty where that completed no character. Not to be called after the end.

        Raises CapacityError or EngineDeadError when the engine ended the request.
        """
        piece = self._opening + self._take(await self._stream.__anext__())
        self._opening = ""
        return piece

    def _take(self, output: Output) -> str:
        self._cached_tokens = output.cached_tokens
        visible = output.token_ids
        if output.finish_reason is FinishReason.STOP and visible[-1] in self._job.hidden_ids:
            visible = visible[:-1]
        delta = self._detokenizer.push(visible)
        self.completion_tokens += delta.num_tokens
        if delta.stopped:
            self.finish_reason = "stop"
            return delta.text
        self.completion_tokens += len(output.token_ids) - len(visible)
        if output.finish_reason is None:
            return delta.text
        rest = self._detokenizer.finish()
        stopped = rest.stopped or output.finish_reason is FinishReason.STOP
        self.finish_reason = "stop" if stopped else "length"
        return delta.text + rest.text
