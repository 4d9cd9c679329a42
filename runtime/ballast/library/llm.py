"""`LLM`: loads a model into this process and answers any number of prompts with the server's scheduler and engine."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from ballast.library.calls import chat_fields, check_others, each_of
from ballast.library.loaded_model import LoadedModel, MakeJob
from ballast.library.outputs import CompletionOutput, Replies, RequestOutput
from ballast.library.params import RequestOutputKind, SamplingParams
from ballast.library.prompts import ChatMessage, Prompt, is_conversation, read_prompt, read_prompts
from ballast.library.tokenizer import ModelTokenizer


class LLM:
    """A model in this process. Closed by leaving its context, or by `close`.

    Methods may be called from any threads; all prompts share one batch. A process that is forked from this one cannot
    use it: methods raise RuntimeError there.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        tokenizer: str | Path | None = None,
        max_num_seqs: int | None = None,
        **options: Any,
    ) -> None:
        """Load `model`, a GGUF file or the folder of its shards. Default: the built-in tiny model.

        `tokenizer`: a folder with config.json and tokenizer files that replace the GGUF's. `max_num_seqs`: maximum
        number of sequences in one step. `options`: further options of `ballast serve`, such as cache_lens=32768, and
        vLLM's `max_model_len`, `seed` and `gpu_memory_utilization`. Other options of vLLM are accepted with values that
        have no effect. Environment variables are not read. Raises BallastError."""
        named = {"model": model, "tokenizer": tokenizer, "max_num_seqs": max_num_seqs}
        self._model = LoadedModel("LLM", {**options, **named})

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        **others: Any,
    ) -> list[RequestOutput]:
        """Continue each prompt and return the outputs in the order of the prompts.

        A prompt is a text, token ids, or a dict with `prompt` or `prompt_token_ids`. `sampling_params`: one for all
        prompts, or one per prompt. `use_tqdm`: show progress if standard error is a terminal. Raises RequestError for a
        prompt or a parameter that the server would refuse; then nothing is returned."""
        check_others(others)
        self._model.check_usable()
        many = read_prompts(prompts)
        makes = [
            self._model.completion(prompt, params)
            for prompt, params in zip(many, each_of(sampling_params, len(many)), strict=True)
        ]
        return self._run(makes, [prompt.text for prompt in many], use_tqdm)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Reply to one or more conversations with the model's chat template. Otherwise as `generate`.

        `continue_final_message`: the reply continues the last message, which must be the assistant's.
        """
        check_others(others)
        self._model.check_usable()
        many: Any = [messages] if is_conversation(messages) else list(messages)
        extra = chat_fields(tools, chat_template, chat_template_kwargs, add_generation_prompt, continue_final_message)
        makes = [
            self._model.chat(one, params, extra)
            for one, params in zip(many, each_of(sampling_params, len(many)), strict=True)
        ]
        return self._run(makes, [None] * len(many), use_tqdm)

    def stream(
        self, prompt: Prompt | Sequence[ChatMessage], sampling_params: SamplingParams | None = None
    ) -> Iterator[CompletionOutput]:
        """The reply to one prompt or conversation, in pieces as it is generated.

        Leaving the iteration aborts the reply. Raises RequestError instead of the first piece.
        """
        params = sampling_params or SamplingParams()
        chat: Any = prompt
        self._model.check_usable()
        make = (
            self._model.chat(chat, params, {})
            if is_conversation(chat)
            else self._model.completion(read_prompt(prompt), params)
        )
        return self._stream(make)

    def get_tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, with the methods of transformers' that users of vLLM call."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The default parameters of a prompt: those of the server."""
        return SamplingParams()

    def close(self) -> None:
        """Free the model. Running prompts fail with CapacityError. Idempotent; no effect in a forked process."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stream(self, make: MakeJob) -> Iterator[CompletionOutput]:
        outputs = self._outputs(make, None, RequestOutputKind.DELTA)
        try:
            while (output := self._model.wait(anext(outputs, None))) is not None:
                yield output.outputs[0]
        finally:
            if self._model.is_usable:
                self._model.wait(outputs.aclose())

    def _run(
        self, makes: Sequence[MakeJob], texts: Sequence[str | None], use_tqdm: bool | Callable[..., Any]
    ) -> list[RequestOutput]:
        make_bar = use_tqdm if callable(use_tqdm) else functools.partial(tqdm, disable=None if use_tqdm else True)
        with make_bar(total=len(makes), desc="prompts") as bar:
            return self._model.wait(self._all(makes, texts, bar.update))

    async def _all(
        self, makes: Sequence[MakeJob], texts: Sequence[str | None], done: Callable[[int], object]
    ) -> list[RequestOutput]:
        waiting = iter(enumerate(zip(makes, texts, strict=True)))
        found: list[RequestOutput | None] = [None] * len(makes)

        async def work() -> None:
            for index, (make, text) in waiting:
                async with aclosing(self._outputs(make, text, RequestOutputKind.FINAL_ONLY)) as outputs:
                    async for output in outputs:
                        found[index] = output
                done(1)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._model.room, len(makes))):
                group.create_task(work())
        return [output for output in found if output is not None]

    async def _outputs(
        self, make: MakeJob, text: str | None, kind: RequestOutputKind
    ) -> AsyncGenerator[RequestOutput, None]:
        name = self._model.new_name()
        replies = Replies(name, text, kind, self._model.text.tokenizer)
        async with aclosing(self._model.steps(make, name)) as steps:
            async for step in steps:
                if (output := replies.take(step)) is not None:
                    yield output
