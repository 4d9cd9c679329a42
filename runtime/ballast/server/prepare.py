"""From a checked body to a request that the engine can run: template, tokens, limits. Pure, and slow enough for a
thread of its own: nothing here may run on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from ballast.engine.constraint import Constraint
from ballast.engine.engine import Limits
from ballast.errors import RequestError
from ballast.grammar.compiler import GrammarCompiler
from ballast.grammar.constraint import Grammar, Thought
from ballast.grammar.opened import CallsOnceOpened, openings
from ballast.grammar.source import Source
from ballast.grammar.thought import held_start, thought_of
from ballast.grammar.tools import CallForm, argument_schemas, tool_calls
from ballast.server.job import Job, Prompt
from ballast.server.openai_request import (
    MAX_CHOICES,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    to_sampling,
)
from ballast.server.prompt import asked_to_think, continues_final, render_prompt
from ballast.server.tool_use import ToolUse, tool_use
from ballast.text.ids_only import WHY
from ballast.text.loading import Text
from ballast.text.marks import CALLING, THINKING, Layout, Start, marks_of, start_of

THINK_OPENING = "<think>\n"


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares every request of one model."""

    text: Text
    limits: Limits
    force_think: bool = False
    split_reasoning: bool = True
    """Whether reasoning leaves the content, tags and all."""
    grammars: GrammarCompiler = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Before the first request: the vocabulary's table takes most of a second, in which no other thread runs.
        object.__setattr__(self, "grammars", GrammarCompiler(self.text.tokenizer))

    def chat(self, body: ChatCompletionRequest, *, split_reasoning: bool | None = None) -> Job:
        """Render and encode the messages. `split_reasoning` replaces the server's own. Raises RequestError,
        CapacityError."""
        use = tool_use(body)
        prompt = self._chat_prompt(body, use)
        start = self._start(prompt, body)
        layout = self._layout(start, use, self.split_reasoning if split_reasoning is None else split_reasoning)
        job = self._job(body, [prompt], "messages", body.num_logprobs)
        ends = {token_id for token_id, mark in layout.marks.items() if mark.spelling in body.stop}
        says_opening = self.force_think and not continues_final(body) and not THINKING & set(layout.marks.values())
        job = replace(
            job,
            layout=layout,
            is_call_forced=use is not None and use.is_named,
            opening=THINK_OPENING if says_opening else "",
            sampling=replace(job.sampling, stop_token_ids=job.sampling.stop_token_ids | ends),
            hidden_ids=job.hidden_ids | ends,
        )
        try:
            return self._chat_held(job, body, use, start)
        except RequestError as error:
            self._blame_tool(use, error)
            raise

    def _chat_held(self, job: Job, body: ChatCompletionRequest, use: ToolUse | None, start: Start) -> Job:
        source = self._chat_grammar(body, use)
        if source is None and use is not None:
            _check_ends(body, "tools")
            return _held(job, self._calls_once_opened(use))
        if source is not None and (start := held_start(start, asked_to_think(body))) is Start.CONTENT:
            job = replace(job, layout=replace(job.layout, start=start))
        return self._shaped(job, body, source, thought_of(start, self.text.tokenizer))

    def _blame_tool(self, use: ToolUse | None, error: RequestError) -> None:
        """A grammar of calls is wrong. Raises RequestError for the tool whose schema is, if one by itself is."""
        if use is not None and error.param == "tools":
            for schema in argument_schemas(use.tools):
                self.grammars.compile(schema)

    def chat_prompt(self, body: ChatCompletionRequest) -> Prompt:
        """The prompt that `chat` gives to the model. Raises RequestError."""
        return self._chat_prompt(body, tool_use(body))

    def _chat_prompt(self, body: ChatCompletionRequest, use: ToolUse | None) -> Prompt:
        tools = () if use is None else use.tools
        text = render_prompt(self.text, body, tools, always_think=self.force_think)
        return Prompt(tuple(self._encode(text, "messages", self.text.tokenizer.encode_prompt)))

    def _chat_grammar(self, body: ChatCompletionRequest, use: ToolUse | None) -> Source | None:
        shape = body.grammar()
        if shape is not None and body.structured_outputs is None and continues_final(body):
            _refuse("response_format", "excludes continuing a message, which is not held to it from its beginning")
        if use is None:
            return shape
        if body.structured_outputs is not None:
            _refuse("structured_outputs", "excludes tools; send tool_choice: none, or no tools")
        if shape is None and not use.is_required:
            return None
        form: CallForm = "fenced" if self.text.require_template().fences_calls else "plain"
        or_else = body.response_format.embedded() if body.response_format and not use.is_required else None
        return tool_calls(
            use.tools, self.text.tokenizer, form, only=use.only, parallel=use.is_parallel, or_else=or_else
        )

    def _calls_once_opened(self, use: ToolUse) -> CallsOnceOpened:
        """A tool that is not strict promises nothing of its arguments: what no grammar can hold them to is let go."""
        tokenizer = self.text.tokenizer

        def compiled(*, any_arguments: bool = False) -> Grammar:
            source = tool_calls(
                use.tools,
                tokenizer,
                "either",
                only=use.only,
                parallel=use.is_parallel,
                any_arguments=any_arguments,
            )
            return self.grammars.compile(source)

        try:
            calls = compiled()
        except RequestError:
            calls = compiled(any_arguments=True)
        return CallsOnceOpened(calls, openings(tokenizer))

    def _start(self, prompt: Prompt, body: ChatCompletionRequest) -> Start:
        tokenizer, family = self.text.tokenizer, self.text.require_template().family
        thinks = family is not None and family.thinks and not continues_final(body)
        marks = marks_of(tokenizer, THINKING)
        return start_of(reversed(prompt.ids), marks, tokenizer.eos_ids, thinks=thinks)

    def _layout(self, start: Start, use: ToolUse | None, split_reasoning: bool) -> Layout:
        """What in the reply is told apart."""
        calling = {} if use is None else marks_of(self.text.tokenizer, CALLING)
        if use is not None and not calling:
            _refuse("tools", "this model's vocabulary has no tokens for tool calls in DeepSeek's form")
        if not split_reasoning:
            return Layout(calling)
        return Layout(marks_of(self.text.tokenizer, THINKING) | calling, start)

    def completion(self, body: CompletionRequest) -> Job:
        """Encode the prompts; token ids are taken as they are. Raises RequestError."""
        prompts = [self._prompt(prompt) for prompt in body.prompt]
        job = self._job(body, prompts, "prompt", body.num_logprobs, echo=bool(body.echo))
        return self._shaped(job, body, body.grammar(), None)

    def _prompt(self, prompt: str | list[int]) -> Prompt:
        tokenizer = self.text.tokenizer
        if isinstance(prompt, str):
            ids = self._encode(prompt, "prompt", tokenizer.encode)
            if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
                return Prompt((tokenizer.bos_id, *ids), num_added=1)
            return Prompt(tuple(ids))
        if len(prompt) >= self.limits.max_model_tokens:
            self._refuse_length(f"at least {len(prompt) + 1} tokens ({len(prompt)} in the prompt)", "prompt")
        self.check_ids("prompt", prompt)
        return Prompt(tuple(prompt))

    def _encode(self, prompt: str, prompt_field: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Token ids, unless the text is so long that it cannot fit, whatever its tokens are."""
        if not self.text.tokenizer.has_vocabulary:
            _refuse(prompt_field, WHY)
        least = self.text.tokenizer.fewest_tokens(prompt)
        if least >= self.limits.max_model_tokens:
            self._refuse_length(f"at least {least + 1} tokens (at least {least} in the prompt)", prompt_field)
        return encode(prompt)

    def _job(
        self,
        body: GenerationRequest,
        prompts: Sequence[Prompt],
        prompt_field: str,
        num_logprobs: int | None,
        *,
        echo: bool = False,
    ) -> Job:
        if not self.text.tokenizer.has_vocabulary:
            self._check_needs_no_text(body, num_logprobs, echo=echo)
        self.check_ids("stop_token_ids", body.stop_token_ids or ())
        self.check_ids("logit_bias", tuple(body.logit_bias or ()))
        if not all(prompt.ids for prompt in prompts):
            _refuse(prompt_field, "the prompt is empty; at least one token is needed")
        n = body.n or 1
        self._check_choices(n, len(prompts))
        max_field, asked = "max_tokens", body.max_tokens
        if body.max_completion_tokens is not None:
            max_field, asked = "max_completion_tokens", body.max_completion_tokens
        longest = max(len(prompt.ids) for prompt in prompts)
        max_tokens = self._grant(longest, prompt_field, max_field, asked)
        if body.min_tokens is not None and body.min_tokens > max_tokens:
            _refuse("min_tokens", f"{body.min_tokens} is more than {max_field}, which is {max_tokens}")
        eos_ids = self.text.tokenizer.eos_ids
        sampling = to_sampling(body, max_tokens=max_tokens, eos_ids=eos_ids, num_logprobs=num_logprobs)
        return Job(
            prompts=tuple(prompts),
            sampling=sampling,
            stop=tuple(body.stop),
            hidden_ids=eos_ids if body.include_stop_str_in_output else sampling.stop_token_ids,
            n=n,
            include_stop=bool(body.include_stop_str_in_output),
            echo=echo,
            discard_tokens=asked == 0,
            priority=body.priority or 0,
            report_progress=bool(body.return_progress),
        )

    def _shaped(self, job: Job, body: GenerationRequest, source: Source | None, thought: Thought | None) -> Job:
        """The job held to the grammar of `source`. Raises RequestError, CapacityError."""
        if source is None:
            return job
        _check_ends(body, source.param)
        return _held(job, self.grammars.compile(source, thought))

    def _check_choices(self, n: int, num_prompts: int) -> None:
        """Choices are admitted together, so all must fit into the queue and the batch at once."""
        most = min(MAX_CHOICES, self.limits.max_queue + self.limits.max_batch_size)
        if n * num_prompts > most:
            of_prompts = f" for each of {num_prompts} prompts" if num_prompts > 1 else ""
            _refuse("n", f"{n} choices{of_prompts} are more than the {most} that this server takes at once")

    def _grant(self, num_prompt: int, prompt_field: str, max_field: str, asked: int | None) -> int:
        """Tokens this request may generate: what it asked for within the server's cap, or what the limits leave."""
        context, most = self.limits.max_model_tokens, self.limits.max_new_tokens
        granted = min(asked or 1, most)
        if num_prompt + granted > context:
            needs = f"at least {num_prompt + 1} tokens ({num_prompt} in the prompt)"
            if asked is not None:
                needs = f"{num_prompt + granted} tokens ({num_prompt} in the prompt, {granted} for the completion)"
            self._refuse_length(needs, prompt_field, f"Shorten the prompt or lower {max_field}.")
        return granted if asked is not None else min(most, context - num_prompt)

    def _refuse_length(self, needs: str, prompt_field: str, way_out: str = "Shorten the prompt.") -> NoReturn:
        raise RequestError(
            f"This model's maximum context length is {self.limits.max_model_tokens} tokens. However, your request "
            f"needs {needs}. {way_out}",
            param=prompt_field,
            code="context_length_exceeded",
        )

    def _check_needs_no_text(self, body: GenerationRequest, num_logprobs: int | None, *, echo: bool) -> None:
        """Refuse what would need the text of a token, of a model that has none."""
        source = body.grammar()
        asked = {
            "stop": bool(body.stop),
            "echo": echo,
            "logprobs": num_logprobs is not None,
            source.param if source else "": source is not None,
        }
        for name, is_asked in asked.items():
            if is_asked:
                _refuse(name, WHY)

    def check_ids(self, name: str, ids: Sequence[int]) -> None:
        """Refuse, as the field `name`, ids that are no token's. Raises RequestError."""
        size = self.text.tokenizer.vocab_size
        for token_id in ids:
            if not 0 <= token_id < size:
                _refuse(name, f"token id {token_id} is not in the vocabulary, whose ids go from 0 to {size - 1}")


def _refuse(param: str, reason: str) -> NoReturn:
    raise RequestError(f"{param}: {reason}", param=param)


def _check_ends(body: GenerationRequest, param: str) -> None:
    if body.ignore_eos:
        _refuse("ignore_eos", f"the grammar of {param} decides where the text ends")


def _held(job: Job, constraint: Constraint) -> Job:
    return replace(job, sampling=replace(job.sampling, constraint=constraint))
