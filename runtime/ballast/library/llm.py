"""`LLM`: loads a model into this process and answers any number of prompts by the server's scheduler and engine."""

from __future__ import annotations

import asyncio
import copy
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from tqdm import tqdm

from ballast.config.options import OF_A_QUEUE, OPTIONS, read_config
from ballast.config.resolve import resolve
from ballast.engine.build import build_engine, engine_settings
from ballast.engine.engine import Engine, EngineState
from ballast.errors import ConfigError, EngineDeadError
from ballast.host.machine import read_machine
from ballast.library.outputs import CompletionOutput, RequestOutput, piece_output, whole_output
from ballast.library.params import SamplingParams
from ballast.server.generation.admitted_job import AdmittedJob, admitted
from ballast.server.generation.job import Job
from ballast.server.generation.request_builder import RequestBuilder
from ballast.server.lifecycle import watch_for_hang
from ballast.server.limits import ServerLimits
from ballast.server.prepared_model import prepare_model
from ballast.server.wire.ignored_fields import IgnoredFields
from ballast.server.wire.openai.request import MAX_CHOICES, ChatCompletionRequest, CompletionRequest, checked_body
from ballast.server.wire.piece import Piece, Whole

Prompt: TypeAlias = str | Sequence[int]
"""A text, or token ids."""
ChatMessage: TypeAlias = Mapping[str, Any]
"""A message as OpenAI's API takes it: {"role": "user", "content": "…"}."""
Result = TypeVar("Result")

_TEXT_THREADS = 2
_STOP_S = 60.0
"""Longest wait for the step that runs when the library closes."""


class LLM:
    """A model in this process. Closed by leaving its context, or by `close`.

    Methods may be called from any threads; all prompts share one batch.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        tokenizer: str | Path | None = None,
        max_num_seqs: int | None = None,
        **options: Any,
    ) -> None:
        """Load `model`, a GGUF file or the folder of its shards; without it the built-in tiny model.

        `tokenizer` is a folder with config.json and tokenizer files, where the GGUF's own are not to be used;
        `max_num_seqs` the most sequences in one step. `options` are further options of `ballast serve` by name, such
        as cache_lens=32768. Environment variables are not read. Raises BallastError.
        """
        named = {"gguf_path": model, "model_path": tokenizer, "max_batch_size": max_num_seqs}
        given = _given({**options, **{name: value for name, value in named.items() if value is not None}})
        prepared = prepare_model(resolve(read_config(given, {}, {}), read_machine().default_threads))
        settings = engine_settings(prepared.config)
        self._room = max(2 * settings.max_batch_size, 2 * MAX_CHOICES)
        """Sequences that are handed to the engine at a time; the rest waits here."""
        # What waits is bounded by `_room`, and nobody would try again later.
        settings = replace(settings, max_queue=self._room, max_queue_tokens=None)
        self._text = prepared.text
        self._ids = itertools.count()
        self._executor = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="ballast-text")
        self._engine = build_engine(prepared.load, settings, prepared.spec.context_length)
        self._builder = RequestBuilder(
            prepared.text,
            self._engine.limits,
            prepared.config.model.force_think,
            split_reasoning=prepared.config.model.reasoning_field != "none",
        )
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(self._room)
        self._taking = asyncio.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="ballast-library", daemon=True)
        self._thread.start()
        self._engine.start()
        try:
            self._wait(_until_ready(self._engine))
        except BaseException:
            self.close()
            raise
        watching = watch_for_hang(self._engine, ServerLimits().fatal_silence_s)
        self._watching = asyncio.run_coroutine_threadsafe(watching, self._loop)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt, a text or token ids, and return the outputs in the order of the prompts.

        One SamplingParams for all, or one each. `use_tqdm`: show progress, where standard error is a terminal.
        Raises RequestError for a prompt or a parameter that the server would refuse; nothing is returned then.
        """
        many = [prompts] if _is_one(prompts) else list(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in many]
        makes = [
            lambda prompt=prompt, params=params: self._completion(prompt, params)
            for prompt, params in zip(many, _each(sampling_params, len(many)), strict=True)
        ]
        return self._run(makes, texts, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Reply to one conversation, or to each of many, by the model's chat template. Else as `generate`."""
        many: Any = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        extra = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
        makes = [
            lambda one=one, params=params: self._chat(one, params, extra)
            for one, params in zip(many, _each(sampling_params, len(many)), strict=True)
        ]
        return self._run(makes, [None] * len(many), use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt | Sequence[ChatMessage], sampling_params: SamplingParams | None = None
    ) -> Iterator[CompletionOutput]:
        """The reply to one prompt, or to one conversation, piece by piece as it is generated.

        Leaving the iteration aborts the reply. Raises RequestError with the first piece.
        """
        params = sampling_params or SamplingParams()
        chat: Any = prompt
        is_chat = not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)
        make = (lambda: self._chat(chat, params, {})) if is_chat else (lambda: self._completion(chat, params))
        pieces = self._stream(make)
        try:
            while (output := self._wait(anext(pieces, None))) is not None:
                yield output
        finally:
            self._wait(pieces.aclose())

    def close(self) -> None:
        """Free the model. Prompts that still run fail with CapacityError. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._engine.stop(0.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._executor.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _completion(self, prompt: Prompt, params: SamplingParams) -> Job:
        one = prompt if isinstance(prompt, str) else [list(prompt)]
        body: dict[str, Any] = {"prompt": one, **params.fields()}
        if params.logprobs is not None:
            body["logprobs"] = params.logprobs
        return self._builder.completion(self._checked(CompletionRequest, body))

    def _chat(self, messages: Any, params: SamplingParams, extra: Mapping[str, Any]) -> Job:
        body: dict[str, Any] = {"messages": [dict(copy.deepcopy(message)) for message in messages], **params.fields()}
        body |= {name: copy.deepcopy(value) for name, value in extra.items() if value is not None}
        if params.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": params.logprobs}
        return self._builder.chat(self._checked(ChatCompletionRequest, body))

    def _checked(self, kind: Any, body: dict[str, Any]) -> Any:
        return checked_body(kind, body, self._engine.limits.max_model_tokens, IgnoredFields(refuse_unknown=True))

    def _run(
        self, makes: Sequence[Callable[[], Job]], texts: Sequence[str | None], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        with tqdm(total=len(makes), desc="prompts", disable=None if use_tqdm else True) as bar:
            return self._wait(self._all(makes, texts, bar.update))

    async def _all(
        self, makes: Sequence[Callable[[], Job]], texts: Sequence[str | None], done: Callable[[int], object]
    ) -> list[RequestOutput]:
        waiting = iter(enumerate(zip(makes, texts, strict=True)))
        outputs: list[RequestOutput | None] = [None] * len(makes)

        async def work() -> None:
            for index, (make, text) in waiting:
                outputs[index] = await self._one(make, text)
                done(1)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._room, len(makes))):
                group.create_task(work())
        return [output for output in outputs if output is not None]

    async def _one(self, make: Callable[[], Job], text: str | None) -> RequestOutput:
        job = await self._loop.run_in_executor(self._executor, make)
        await self._take(job.num_choices)
        try:
            with admitted(self._engine, job, name := self._name(), self._text.tokenizer) as generation:
                choices = [Whole(index) for index in range(job.num_choices)]
                while not generation.finished:
                    piece = await generation.next_piece()
                    choices[piece.index].add(piece)
            return self._output(name, text, job, generation, choices)
        finally:
            self._give(job.num_choices)

    def _output(
        self, name: str, text: str | None, job: Job, generation: AdmittedJob, choices: Sequence[Whole]
    ) -> RequestOutput:
        scored = job.sampling.logprobs is not None
        outputs = (whole_output(choice, self._text.tokenizer, with_logprobs=scored) for choice in choices)
        cached = generation.usage.cached_tokens
        return RequestOutput(name, text, job.prompts[0].ids, tuple(outputs), cached)

    async def _stream(self, make: Callable[[], Job]) -> AsyncGenerator[CompletionOutput, None]:
        job = await self._loop.run_in_executor(self._executor, make)
        scored = job.sampling.logprobs is not None
        await self._take(job.num_choices)
        try:
            async with aclosing(_pieces(self._engine, job, self._name(), self._text.tokenizer)) as pieces:
                async for piece in pieces:
                    yield piece_output(piece, self._text.tokenizer, with_logprobs=scored)
        finally:
            self._give(job.num_choices)

    def _name(self) -> str:
        return str(next(self._ids))

    async def _take(self, count: int) -> None:
        """Wait until so many more sequences may be handed to the engine; whoever comes first is first."""
        async with self._taking:
            taken = 0
            try:
                while taken < count:
                    await self._slots.acquire()
                    taken += 1
            except BaseException:
                self._give(taken)
                raise

    def _give(self, count: int) -> None:
        for _ in range(count):
            self._slots.release()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which runs on the library's loop; Ctrl-C cancels it. Of many errors, the first."""
        if self._is_closed:
            work.close()
            raise RuntimeError("this LLM is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        except BaseException:
            future.cancel()
            raise


async def _pieces(engine: Engine, job: Job, name: str, tokenizer: Any) -> AsyncGenerator[Piece, None]:
    with admitted(engine, job, name, tokenizer) as generation:
        while not generation.finished:
            yield await generation.next_piece()


async def _until_ready(engine: Engine) -> None:
    """Raises the error that ended the load."""
    while engine.state is EngineState.LOADING:  # noqa: ASYNC110  set on a thread without an event loop
        await asyncio.sleep(0.01)
    if engine.failure is not None:
        raise EngineDeadError.because_of(engine.failure)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the form that the command line gives. Raises ConfigError for one that a library has no use for."""
    known = {opt.name: opt for opt in OPTIONS}
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(name, value, "no such option; `ballast serve --help` lists them")
        if known[name].section in ("server", "log"):
            raise ConfigError(name, value, "is about the HTTP server or its log, and a library has neither")
        if name in OF_A_QUEUE:
            raise ConfigError(name, value, "is about a queue of many clients, and a library has one")
        if value is not None:
            found[name] = value if isinstance(value, bool) else str(value)
    return found


def _is_one(prompts: Any) -> bool:
    """Whether it is one prompt: a text or token ids."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))


def _each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    """One SamplingParams for each of `count` prompts. Raises ValueError where their number differs."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"sampling_params: {len(params)} for {count} prompts; give one for all, or one each")
    return params
