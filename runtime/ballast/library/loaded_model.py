"""A model loaded into this process: the engine, and the event loop on which its requests run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import itertools
import os
import random
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias, TypeVar

from ballast.config.options import OPTIONS, QUEUE_OPTIONS, read_config
from ballast.config.resolve import full_device, resolve
from ballast.engine.engine import Engine
from ballast.engine.request import MAX_SEED
from ballast.engine.startup.build import build_engine, engine_settings
from ballast.engine.supervision import until_loaded, watch_for_hang
from ballast.errors import CapacityError, ConfigError, EngineDeadError
from ballast.generation.admitted_job import admitted
from ballast.generation.job import Job
from ballast.generation.request_builder import RequestBuilder
from ballast.host.gpu import auto_device, total_vram
from ballast.host.machine import read_machine
from ballast.library.forks import check_not_forked, never_freed_by_a_child
from ballast.library.outputs import Step
from ballast.library.params import SamplingParams
from ballast.library.prompts import ChatMessage, ReadPrompt
from ballast.library.tokenizer import ModelTokenizer
from ballast.library.vllm_options import RENAMED, vram_share, whole_or_none, without_fixed
from ballast.prepared_model import prepare_model
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.openai.request import (
    MAX_CHOICES,
    ChatCompletionRequest,
    CompletionRequest,
    checked_body,
)

Result = TypeVar("Result")
MakeJob: TypeAlias = Callable[[], Job]
"""Creates the job of a request. Slow; raises RequestError."""

_TEXT_THREADS = 2
_STOP_S = 60.0
"""Longest wait for the running step when the library closes."""


class LoadedModel:
    """The common part of `LLM` and `AsyncLLM`. Methods may be called from any thread; coroutines run on `loop`."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        """Load the model. `kind` is the class's name for messages; `options` are vLLM's or those of `ballast serve`.

        Raises BallastError.
        """
        self._kind = kind
        self._pid = os.getpid()
        options = dict(options)
        seed = whole_or_none("seed", options.pop("seed", None), 0)
        longest = whole_or_none("max_model_len", options.pop("max_model_len", None), 1)
        self._seeds = None if seed is None else random.Random(seed)  # noqa: S311  not for secrets
        prepared = prepare_model(resolve(read_config(_given(options), {}, {}), read_machine().default_threads))
        settings = engine_settings(prepared.config)
        self.room = max(2 * settings.max_batch_size, 2 * MAX_CHOICES)
        """Maximum number of sequences in the engine; the rest waits here."""
        # `room` limits the queue, because a refused prompt would not be retried.
        settings = replace(settings, max_queue=self.room, max_queue_tokens=None)
        self._context = prepared.context_length
        self.engine = build_engine(prepared.load, settings, min(self._context, longest or self._context))
        if longest is not None and longest > self.engine.limits.max_model_tokens:
            self._refuse_length(longest)
        self.text = prepared.text
        self._ids = itertools.count()
        self._executor = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="ballast-text")
        self._builder = RequestBuilder(
            prepared.text,
            self.engine.limits,
            prepared.config.model.force_think,
            trust_templates=True,
            split_reasoning=prepared.config.model.reasoning_field != "none",
            keeps_snapshots=prepared.has_states,
        )
        self.loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(self.room)
        self._taking = asyncio.Lock()
        self._is_closed = False
        self._closing = threading.Lock()
        never_freed_by_a_child(self)
        self._thread = threading.Thread(target=self.loop.run_forever, name="ballast-library", daemon=True)
        self._thread.start()
        self.engine.start()
        try:
            self.wait(_until_ready(self.engine))
        except BaseException:
            self.close()
            raise
        self._watching = asyncio.run_coroutine_threadsafe(watch_for_hang(self.engine), self.loop)

    @property
    def tokenizer(self) -> ModelTokenizer:
        """For texts and conversations without a generation."""
        self.check_usable()
        return ModelTokenizer(self._builder)

    @property
    def is_usable(self) -> bool:
        """Whether the model is open and was loaded by this process."""
        return not self._is_closed and os.getpid() == self._pid

    def check_usable(self) -> None:
        """Raise RuntimeError after `close`, and in a process forked from the one that loaded the model."""
        self.check_process()
        if self._is_closed:
            raise RuntimeError(f"this {self._kind} is closed")

    def check_process(self) -> None:
        """Raise RuntimeError in a process forked from the one that loaded the model."""
        check_not_forked(self._pid, self._kind)

    def completion(self, prompt: ReadPrompt, params: SamplingParams) -> MakeJob:
        """The job that continues a prompt. Raises RequestError."""
        body = {"prompt": prompt.value if isinstance(prompt.value, str) else [prompt.value], **prompt.fields}
        body |= self._fields(params)
        if params.logprobs is not None:
            body["logprobs"] = params.logprobs
        return lambda: self._builder.completion(self._checked(CompletionRequest, body))

    def chat(self, messages: Sequence[ChatMessage], params: SamplingParams, extra: Mapping[str, Any]) -> MakeJob:
        """The job that replies to a conversation. `extra`: further fields of the request. Raises RequestError."""
        body = {"messages": [dict(copy.deepcopy(message)) for message in messages], **self._fields(params)}
        body |= {name: copy.deepcopy(value) for name, value in extra.items() if value is not None}
        if params.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": params.logprobs}
        return lambda: self._builder.chat(self._checked(ChatCompletionRequest, body))

    def new_name(self) -> str:
        """A default request id."""
        return str(next(self._ids))

    async def steps(self, make: MakeJob, name: str) -> AsyncGenerator[Step, None]:
        """The pieces of a request as they are generated. Closing the iteration aborts the request. Runs on `loop`."""
        job = await self.loop.run_in_executor(self._executor, make)
        await self._take(job.num_choices)
        try:
            with admitted(self.engine, job, name, self.text.tokenizer) as generation:
                while not generation.finished:
                    piece = await generation.next_piece()
                    yield Step(job, piece, generation.usage.cached_tokens)
        finally:
            self._give(job.num_choices)

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Start `work` on `loop`. Cancelling the result cancels the work. Raises RuntimeError as `check_usable`
        does."""
        try:
            self.check_usable()
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which runs on `loop`; Ctrl-C cancels it. Raises the first of several errors."""
        future = self.start(work)
        try:
            return future.result()
        except ExceptionGroup as errors:
            raise self.reason_of(errors.exceptions[0]) from None
        except (concurrent.futures.CancelledError, CapacityError) as error:
            raise self.reason_of(error) from None
        except BaseException:
            future.cancel()
            raise

    def reason_of(self, error: Exception) -> Exception:
        """The error that ended a request. If closing the model caused it, an error that says so."""
        if not (self._is_closed and isinstance(error, concurrent.futures.CancelledError | CapacityError)):
            return error
        return CapacityError(f"this {self._kind} was closed while the request ran", status=503, code="shutting_down")

    def close(self) -> None:
        """Free the model. Running requests fail. Idempotent; no effect in a forked process."""
        if os.getpid() != self._pid:
            return
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self.engine.stop(0.0)
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self.loop).result(_STOP_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_S)
        self._executor.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            self.loop.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {self._kind} is a model in this process, and cannot be copied or sent to another; load it there"
        )

    async def _end_tasks(self) -> None:
        """Cancel the loop's running tasks, and wait for their end."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fields(self, params: SamplingParams) -> dict[str, Any]:
        fields = params.fields()
        if self._seeds is not None:
            fields.setdefault("seed", self._seeds.randrange(MAX_SEED))
        return fields

    def _checked(self, kind: Any, body: dict[str, Any]) -> Any:
        return checked_body(kind, body, self.engine.limits.max_model_tokens, IgnoredFields(refuse_unknown=True))

    def _refuse_length(self, longest: int) -> NoReturn:
        if longest > self._context:
            raise ConfigError("max_model_len", longest, f"the model's context is {self._context} tokens; lower it")
        room = self.engine.limits.max_model_tokens
        raise ConfigError("max_model_len", longest, f"the KV cache holds {room} tokens; lower it, or raise cache_lens")

    async def _take(self, count: int) -> None:
        """Wait until the engine can take `count` more sequences; first come, first served."""
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


async def _until_ready(engine: Engine) -> None:
    """Raises the error that ended loading."""
    await until_loaded(engine)
    if engine.failure is not None:
        raise EngineDeadError.because_of(engine.failure)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the form of the command line. Raises ConfigError for an option that does not apply to the library."""
    known = {opt.name: opt for opt in OPTIONS}
    found: dict[str, Any] = {}
    options = without_fixed(options)
    share = options.pop("gpu_memory_utilization", None)
    for vllm_name, value in options.items():
        name = RENAMED.get(vllm_name, vllm_name)
        if name not in known:
            raise ConfigError(name, value, "no such option; `ballast serve --help` lists them")
        if known[name].section in ("server", "log"):
            raise ConfigError(name, value, "is an option of the HTTP server or its log; leave it out")
        if name in QUEUE_OPTIONS:
            raise ConfigError(name, value, "is an option for servers with several clients; leave it out")
        if value is not None and name in found:
            raise ConfigError(vllm_name, value, f"is the same as {name}, which is also given; leave one of them out")
        if value is not None:
            found[name] = _as_text(value)
    if share is not None:
        found |= _vram_limit(vram_share(share), found)
    return found


def _as_text(value: Any) -> Any:
    """A value in the form of the command line. Booleans stay unchanged, and lists become repeated options."""
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return value if isinstance(value, bool) else str(value)


def _vram_limit(share: float, given: Mapping[str, Any]) -> dict[str, str]:
    """The limit of the GPU's memory for this fraction; none without a GPU."""
    if "vram_limit" in given:
        raise ConfigError(
            "gpu_memory_utilization",
            share,
            "sets the same limit as vram_limit, which is also given; leave one of them out",
        )
    machine = read_config(given).machine
    machine = replace(machine, device=auto_device()[0] if machine.device == "auto" else full_device(machine))
    totals = [total_vram(name) for name in machine.gpus]
    known = [total for total in totals if total is not None]
    return {"vram_limit": ",".join(str(int(share * total)) for total in known)} if known and known == totals else {}
