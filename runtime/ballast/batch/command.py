"""`ballast batch`: answers a file of requests like the server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import uvloop
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ballast.batch.answers import URLS, Answers
from ballast.batch.files import Replies, check_requests, read_requests
from ballast.batch.lines import BatchRequest, answer_line, refusal, refusal_line
from ballast.config.options import Config
from ballast.engine.engine import Engine, EngineState
from ballast.engine.startup.build import build_engine, engine_settings
from ballast.engine.startup.load_progress import with_progress
from ballast.engine.supervision import failure_reason, stop_engine, until_loaded, watch_for_hang
from ballast.errors import ConfigError, shown
from ballast.generation.text_threads import text_threads
from ballast.log import configure_logging
from ballast.prepared_model import PreparedModel, prepare_model
from ballast.process_exit import STOP_SIGNALS, exit_now
from ballast.wire.openai.request import MAX_CHOICES

log = logging.getLogger(__name__)

EXIT_SOME_FAILED = 1
LOGGED_EVERY_S = 30.0
_TRIES = 20
"""Attempts of a request without capacity, such as threads for its grammar."""
_NO_CAPACITY = (429, 503)
_NO_LIMIT = 1 << 40


def run(config: Config, requests: Path, replies: Path) -> int:
    """Answer the requests that have no reply in `replies` yet, with a resolved configuration.

    Returns 0, 1 if some failed, or 128 plus the number of the signal that stopped it. Raises BallastError.
    """
    configure_logging(config.log)
    if replies.exists() and requests.exists() and replies.samefile(requests):
        raise ConfigError("replies", replies, "is also the file of requests; choose another file")
    requested = check_requests(requests)
    with Replies(replies) as output:
        other = next((name for name in output.held if name not in requested), None)
        if other is not None:
            problem = f"has a reply to custom_id {shown(other)}, which {requests} does not contain; choose another file"
            raise ConfigError("replies", replies, problem)
        before = len(output.held)
        ended = _Ended()
        if before < len(requested):
            model = prepare_model(config)
            todo = (request for request in read_requests(requests) if request.custom_id not in output.held)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                ended = runner.run(_answer_all(model, todo, output, len(requested)))
        failed = sum(output.held.values())
        sys.stdout.write(_summary(len(requested), len(output.held), failed, before, ended, replies))
        sys.stdout.flush()
    if not ended.engine_stopped:
        logging.shutdown()
        os._exit(128 + (ended.signal or 0))  # this thread cannot stop the engine's
    if ended.signal is not None:
        return 128 + ended.signal
    return EXIT_SOME_FAILED if failed else 0


@dataclass(slots=True)
class _Ended:
    """How a run ended."""

    signal: int | None = None
    tokens: int = 0
    """Generated."""
    seconds: float = 0.0
    engine_stopped: bool = True


def _summary(requested: int, held: int, failed: int, before: int, ended: _Ended, file: Path) -> str:
    lines = [f"{requested} requests: {held - failed} answered, {failed} failed, {requested - held} left"]
    if before:
        lines.append(f"  {before} were answered before")
    if ended.seconds:
        rate = ended.tokens / ended.seconds
        lines.append(f"  {ended.tokens} tokens in {ended.seconds:.1f} s, {rate:.1f} tokens/s")
    lines.append(f"  written to {file}")
    if held < requested:
        lines.append("  run the same command again to continue")
    return "\n".join((*lines, ""))


async def _answer_all(model: PreparedModel, todo: Iterator[BatchRequest], output: Replies, total: int) -> _Ended:
    """Exits the process if the engine dies."""
    loop = asyncio.get_running_loop()
    shutting_down: asyncio.Future[None] = loop.create_future()
    ended = _Ended()
    window = 2 * model.config.scheduling.max_batch_size
    # The window limits waiting requests, so that the queue is never full.
    settings = replace(
        engine_settings(model.config),
        max_queue=window * MAX_CHOICES,
        max_queue_tokens=_NO_LIMIT,
        max_queue_wait_s=0.0,
    )
    engine = build_engine(with_progress(model.load, model.num_bytes), settings, model.context_length)

    def on_signal(number: int) -> None:
        if ended.signal is not None or engine.state is EngineState.LOADING:
            os._exit(128 + number)  # replies are written line by line, so none is lost
        ended.signal = number
        shutting_down.set_result(None)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    with text_threads(model.text, model.config.model) as threads:
        answers = Answers(model, engine, threads, shutting_down)
        engine.start()
        await until_loaded(engine)
        watching = asyncio.create_task(watch_for_hang(engine))
        begin = time.monotonic()
        try:
            with _Progress(total, len(output.held)) as progress:
                await _work(answers, engine, todo, output, window, shutting_down, progress)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            watching.cancel()
            ended.seconds, ended.tokens = time.monotonic() - begin, engine.snapshot().generation_tokens
            ended.engine_stopped = await stop_engine(engine, 0.0)
        if engine.failure is not None:
            exit_now(failure_reason(engine.failure))
    return ended


async def _work(
    answers: Answers,
    engine: Engine,
    todo: Iterator[BatchRequest],
    output: Replies,
    window: int,
    shutting_down: asyncio.Future[None],
    progress: _Progress,
) -> None:
    """Answer requests, `window` at a time, until all are answered, the run is stopped or the engine is dead."""

    def is_over() -> bool:
        return shutting_down.done() or engine.failure is not None

    async def work() -> None:
        while not is_over() and (request := next(todo, None)) is not None:
            line = await _line_for(answers, request, shutting_down)
            if is_over():
                return  # the error may be a consequence of the stop; the next run tries the request again
            output.add(request.custom_id, line)
            progress.note(failed=output.held[request.custom_id])

    async with asyncio.TaskGroup() as group:
        for _ in range(window):
            group.create_task(work())


async def _line_for(answers: Answers, request: BatchRequest, shutting_down: asyncio.Future[None]) -> bytes:
    refused = refusal(request, URLS)
    if refused is not None:
        return refusal_line(request.custom_id, uuid.uuid4().hex, *refused)
    body = json.dumps(request.body).encode()
    for _ in range(_TRIES):
        answer = await answers.answer(request.url, body)
        if answer.status not in _NO_CAPACITY or shutting_down.done():
            break
        await asyncio.wait([shutting_down], timeout=answer.retry_after_s)
    return answer_line(request.custom_id, answer)


class _Progress:
    """A progress bar on a terminal, otherwise a log line every 30 s."""

    def __init__(self, total: int, held: int) -> None:
        self._total, self._failed = total, 0
        self._next_s = time.monotonic() + LOGGED_EVERY_S
        self._redirected = logging_redirect_tqdm()
        self._bar = tqdm(total=total, initial=held, desc="requests", disable=None)
        self._num_done = held

    def __enter__(self) -> Self:
        self._redirected.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        self._redirected.__exit__(kind, error, trace)

    def note(self, *, failed: bool) -> None:
        """Count one more reply."""
        self._num_done += 1
        self._failed += failed
        if self._failed:
            self._bar.set_postfix_str(f"{self._failed} failed", refresh=False)
        self._bar.update()
        if self._bar.disable and time.monotonic() >= self._next_s:
            self._next_s += LOGGED_EVERY_S
            log.info("batch", extra={"done": self._num_done, "of": self._total, "failed": self._failed})
