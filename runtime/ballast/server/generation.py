"""One admitted job: the engine's tokens become text, and whatever happens its place in the engine is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ballast.engine.logprobs import TokenLogprobs
from ballast.engine.request import Output
from ballast.server.choice import Choice, Piece
from ballast.server.job import Job
from ballast.server.port import EnginePort, OutputStream
from ballast.server.usage import Progress, Timings, Usage
from ballast.text.tokenizer import Tokenizer


@contextmanager
def admitted(engine: EnginePort, job: Job, request_id: str, tokenizer: Tokenizer) -> Iterator[Generation]:
    """Submit the job; leaving the block by any road frees it. Raises what `EnginePort.submit` raises."""
    stream = engine.submit(*job.requests(request_id))
    try:
        yield Generation(stream, job, tokenizer)
    finally:
        stream.abort()


class Generation:
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
        self.progress: Progress | None = None
        """Of the prompt that the last output went on with; None after an output with tokens."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return not self._num_open

    @property
    def finish_reason(self) -> str | None:
        """Why the choices ended, each reason once; None while one goes on."""
        if not self.finished:
            return None
        return "+".join(sorted({str(choice.finish_reason) for choice in self.choices}))

    @property
    def usage(self) -> Usage:
        """What the job has cost so far. A prompt counts once, however often it is continued."""
        return Usage(
            sum(len(prompt.ids) for prompt in self._job.prompts),
            sum(choice.completion_tokens for choice in self.choices),
            sum(choice.cached_tokens for choice in self.choices[:: self._job.n]),
            sum(choice.reasoning_tokens for choice in self.choices),
        )

    @property
    def timings(self) -> Timings:
        """How long prompts and tokens have taken."""
        return Timings(
            self.usage,
            prompt_s=max(0.0, self._first_token_s - self._admitted_s),
            predicted_s=self._last_token_s - self._first_token_s,
        )

    async def next_piece(self) -> Piece:
        """More of one choice. Not to be called when all have ended.

        Raises CapacityError, EngineDeadError or RequestError when the engine ended the job.
        """
        while True:
            output = await self._stream.__anext__()
            choice = self.choices[output.index]
            if choice.finish_reason is None:
                break
        self._note(output)
        scores = self._prompt_scores[self._job.prompt_of(output.index)]
        if choice.is_to_echo:
            # A whole prompt becomes text: too long for the event loop.
            piece = await asyncio.to_thread(choice.take, output, scores)
        else:
            piece = choice.take(output, scores)
        if piece.finish_reason is not None:
            self._num_open -= 1
            self._stream.abort(output.index)
        return piece

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
