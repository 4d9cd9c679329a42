"""A job that runs in the engine: turns its tokens into text, and always releases its slots at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ballast.engine.request import Output
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.generation.choice import Choice
from ballast.generation.engine_port import EnginePort, OutputStream
from ballast.generation.job import Job
from ballast.text.tokenizer import Tokenizer
from ballast.wire.piece import Piece, Whole
from ballast.wire.usage import Progress, Timings, Usage


@dataclass(frozen=True, slots=True)
class Phases:
    """When each phase of a generation began, by `time.monotonic`; 0: it has not begun."""

    submitted_s: float
    """When the tokenised request entered the engine's queue."""
    admitted_s: float
    """When the request's first step began."""
    first_token_s: float
    last_token_s: float


@contextmanager
def admitted(engine: EnginePort, job: Job, request_id: str, tokenizer: Tokenizer) -> Iterator[AdmittedJob]:
    """Submit the job. Leaving the block in any way aborts it. Raises what `EnginePort.submit` raises."""
    stream = engine.submit(*job.requests(request_id))
    try:
        yield AdmittedJob(stream, job, tokenizer)
    finally:
        stream.abort()


class AdmittedJob:
    """Text and counts of all choices of one job."""

    def __init__(self, stream: OutputStream, job: Job, tokenizer: Tokenizer) -> None:
        self._stream = stream
        self._job = job
        prompts = (job.prompts[job.prompt_of(index)] for index in range(job.num_choices))
        self.choices = [Choice(index, job, prompt, tokenizer) for index, prompt in enumerate(prompts)]
        self._num_open = job.num_choices
        self._prompt_scores: list[list[TokenLogprobs]] = [[] for _ in job.prompts]
        self._first_token_s = 0.0
        self._last_token_s = 0.0
        self._admitted_s = 0.0
        self._submitted_s = time.monotonic()
        self.first_piece_s = 0.0
        """When the first piece was ready, by `time.monotonic`; 0 before."""
        self.progress: Progress | None = None
        """Progress of the prompt in the last output; None after an output with tokens."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return not self._num_open

    @property
    def finish_reason(self) -> str | None:
        """Why the choices ended, each reason once, joined by "+"; None while a choice still runs."""
        if not self.finished:
            return None
        return "+".join(sorted({str(choice.finish_reason) for choice in self.choices}))

    @property
    def usage(self) -> Usage:
        """The tokens used so far. A prompt counts once, even if several choices continue it."""
        return Usage(
            sum(len(prompt.ids) for prompt in self._job.prompts),
            sum(choice.completion_tokens for choice in self.choices),
            sum(choice.cached_tokens for choice in self.choices[:: self._job.n]),
            sum(choice.reasoning_tokens for choice in self.choices),
        )

    @property
    def timings(self) -> Timings:
        """How long prompts and tokens took so far."""
        return Timings(
            self.usage,
            prompt_s=max(0.0, self._first_token_s - self._admitted_s),
            predicted_s=self._last_token_s - self._first_token_s,
        )

    @property
    def phases(self) -> Phases:
        """When each phase began."""
        return Phases(self._submitted_s, self._admitted_s, self._first_token_s, self._last_token_s)

    async def next_piece(self) -> Piece:
        """The next piece of any choice. Must not be called after all choices have ended.

        Raises CapacityError, EngineDeadError or RequestError when the engine has ended the job early.
        """
        while True:
            output = await self._stream.__anext__()
            choice = self.choices[output.index]
            if choice.finish_reason is None:
                break
        self._note(output)
        scores = self._prompt_scores[self._job.prompt_of(output.index)]
        if choice.is_to_echo:
            # The first output may echo the whole prompt as text, which is too slow for the event loop.
            piece = await asyncio.to_thread(choice.take, output, scores)
        else:
            piece = choice.take(output, scores)
        self.first_piece_s = self.first_piece_s or time.monotonic()
        if piece.finish_reason is not None:
            self._num_open -= 1
            self._stream.abort(output.index)
        return piece

    async def whole(self) -> list[Whole]:
        """All choices, once each has ended. Raises as `next_piece` does."""
        choices = [Whole(index) for index in range(len(self.choices))]
        while not self.finished:
            piece = await self.next_piece()
            choices[piece.index].add(piece)
        return choices

    def _note(self, output: Output) -> None:
        prompt = self._job.prompt_of(output.index)
        self._prompt_scores[prompt] += output.prompt_logprobs
        self._admitted_s = self._admitted_s or output.admitted_s
        self.progress = None
        if output.token_ids:
            self._first_token_s = self._first_token_s or output.produced_s
            self._last_token_s = output.produced_s
        elif self._job.report_progress:
            self.progress = Progress(
                index=output.index,
                total_tokens=len(self._job.prompts[prompt].ids),
                cached_tokens=output.cached_tokens,
                computed_tokens=output.computed_tokens,
                duration_s=output.produced_s - output.admitted_s,
            )
