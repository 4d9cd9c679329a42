"""`AsyncLLM`: like `LLM`, for programs with their own event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from ballast.errors import CapacityError
from ballast.library.calls import chat_fields, check_others
from ballast.library.loaded_model import LoadedModel, MakeJob
from ballast.library.outputs import Replies, RequestOutput, Step
from ballast.library.params import SamplingParams
from ballast.library.prompts import ChatMessage, Prompt, read_prompt
from ballast.library.tokenizer import ModelTokenizer

Ended: TypeAlias = "concurrent.futures.Future[None]"


class AsyncLLM:
    """A model in this process whose replies are async generators. Any number of requests may run concurrently, on any
    event loops.

    Closed by leaving its context (`async with`), or by `shutdown`. A process that is forked from this one cannot use
    it: methods raise RuntimeError there.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        tokenizer: str | Path | None = None,
        max_num_seqs: int | None = None,
        **options: Any,
    ) -> None:
        """As `LLM`. Blocks until the model is loaded; `await AsyncLLM.load(…)` does not block the event loop."""
        named = {"model": model, "tokenizer": tokenizer, "max_num_seqs": max_num_seqs}
        self._model = LoadedModel("AsyncLLM", {**options, **named})
        self._running: dict[str, Ended] = {}
        self._aborted: set[str] = set()

    @classmethod
    async def load(cls, model: str | Path | None = None, **options: Any) -> Self:
        """Load a model. Other tasks run in the meantime."""
        return await asyncio.to_thread(cls, model, **options)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **others: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue a prompt, and yield the reply while it is generated, in the form that `output_kind` of the
        parameters defines.

        Leaving the iteration, or cancelling the task, aborts the request. Raises RequestError instead of the first
        output, and ValueError if a request with this id is running."""
        check_others(others)
        self._model.check_usable()
        params, read = sampling_params or SamplingParams(), read_prompt(prompt)
        return self._outputs(self._model.completion(read, params), read.text, params, request_id)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Reply to a conversation with the model's chat template. Otherwise as `generate`."""
        check_others(others)
        self._model.check_usable()
        params = sampling_params or SamplingParams()
        extra = chat_fields(tools, chat_template, chat_template_kwargs, add_generation_prompt, continue_final_message)
        return self._outputs(self._model.chat(messages, params, extra), None, params, request_id)

    async def abort(self, request_id: str) -> None:
        """End a request: its last output has the finish reason "abort". No effect if the request is not running."""
        self._model.check_usable()
        if (ended := self._running.get(request_id)) is not None:
            self._aborted.add(request_id)
            ended.cancel()

    async def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, with the most used methods of transformers' tokenizers."""
        return self._model.tokenizer

    def shutdown(self) -> None:
        """Free the model. Running requests fail with CapacityError. Idempotent; no effect in a forked process."""
        self._model.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.shutdown)

    async def _outputs(
        self, make: MakeJob, text: str | None, params: SamplingParams, request_id: str | None
    ) -> AsyncGenerator[RequestOutput, None]:
        """The request runs on the library's loop; its outputs are queued on the caller's."""
        name = self._model.new_name() if request_id is None else request_id
        if name in self._running:
            raise ValueError(f"request_id={name!r}: a request with this id is running; use a unique id")
        replies = Replies(name, text, params.output_kind, self._model.text.tokenizer)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Step | Ended] = asyncio.Queue()

        def deliver(item: Step | Ended) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, item)

        def deliver_end(ended: Ended) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed, and the error has no reader
                deliver(ended)

        ended = self._running[name] = self._model.start(_deliver_steps(self._model, make, name, deliver))
        ended.add_done_callback(deliver_end)
        try:
            while isinstance(item := await arrived.get(), Step) and name not in self._aborted:
                if (output := replies.take(item)) is not None:
                    yield output
                    self._model.check_process()  # a forked process would wait forever
            if name in self._aborted:
                yield replies.aborted()
            else:
                self._raise_error_of(ended)
        finally:
            del self._running[name]
            self._aborted.discard(name)
            if self._model.is_usable:
                ended.cancel()

    def _raise_error_of(self, ended: Ended) -> None:
        """Raise the error that ended a request, if one did."""
        try:
            ended.result()
        except (concurrent.futures.CancelledError, CapacityError) as error:
            raise self._model.reason_of(error) from None


async def _deliver_steps(model: LoadedModel, make: MakeJob, name: str, deliver: Callable[[Step], None]) -> None:
    """Run a request on the library's loop and deliver its pieces. Fails if the caller's loop is closed."""
    async with aclosing(model.steps(make, name)) as steps:
        async for step in steps:
            deliver(step)
