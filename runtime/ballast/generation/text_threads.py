"""The threads that check bodies, render chat templates and tokenise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from ballast.config.options import ModelConfig
from ballast.engine.admission.retry_schedule import RetrySchedule
from ballast.text.loading import Text

TEXT_THREADS = 2
"""Tokenising is short and frequent; more threads would take cores from the model."""

P = ParamSpec("P")
Result = TypeVar("Result")


class TextThreads:
    """Runs work off the event loop, and counts it."""

    def __init__(self, executor: Executor, chat_executor: Executor) -> None:
        """`chat_executor` runs work that may render a chat template; both may be the same."""
        self._executor = executor
        self._chat_executor = chat_executor
        self._waiting: set[Future[Any]] = set()
        self.num_arriving = 0
        """Requests that are being tokenised."""
        self.retries = RetrySchedule(TEXT_THREADS)

    @property
    def num_waiting(self) -> int:
        """Number of calls that run or wait for a thread."""
        return len(self._waiting)

    async def run(self, is_chat: bool, work: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result:
        """The result of `work`. `is_chat`: it may render a chat template."""

        def timed() -> Result:
            begin = time.monotonic()
            try:
                return work(*arguments, **named)
            finally:
                self.retries.ran(time.monotonic() - begin, num_ended=1)

        # A thread cannot be stopped when its client disconnects, so its call counts until it ends.
        done = (self._chat_executor if is_chat else self._executor).submit(timed)
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)
        self.num_arriving += 1
        try:
            return await asyncio.wrap_future(done)
        finally:
            self.num_arriving -= 1


@contextmanager
def text_threads(text: Text, model: ModelConfig) -> Iterator[TextThreads]:
    """The threads for a model's text."""
    with (
        ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="ballast-text") as executor,
        # A slow template of a model file delays chats only.
        ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="ballast-chat") as guarded,
    ):
        is_guarded = text.template is not None and text.template.is_guarded
        yield TextThreads(executor, guarded if is_guarded or model.trust_request_chat_template else executor)
