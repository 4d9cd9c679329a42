"""Builds a job for the engine from a checked body: template, tokens, limits, grammar.

Pure, but slow: nothing here may run on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ballast.engine.limits import Limits
from ballast.engine.sampling.constraint import Constraint
from ballast.errors import RequestError
from ballast.families.family import CallStyle
from ballast.families.marks import THINKING
from ballast.generation.channels import channel_layout, channels_of, free_calls, last_message
from ballast.generation.chat_prompt import (
    continues_final,
    ineffective_fields,
    render_beginnings,
    render_prompt,
    thinking_enabled,
)
from ballast.generation.infill import ended_by, filling, infill_prompt, require_fim
from ballast.generation.job import Job, Prompt
from ballast.generation.prompt_limits import granted_tokens, refuse_length, requested_tokens, truncated
from ballast.generation.repeated_prompt import repeated_tokens
from ballast.generation.request_template import text_with_template
from ballast.generation.token_fields import with_token_rules
from ballast.generation.tool_use import ToolUse, tool_use
from ballast.grammar.calls.lazy_tool_grammar import LazyToolGrammar, trigger_tokens
from ballast.grammar.calls.tools import strict_schemas, tool_calls
from ballast.grammar.compiler import GrammarCompiler
from ballast.grammar.constraint import Grammar, ReasoningPrefix
from ballast.grammar.reasoning_prefix import constrained_start, reasoning_prefix
from ballast.grammar.source import Source
from ballast.text.calls.forms import reader_of
from ballast.text.control_text import unescape
from ballast.text.ids_only import WHY
from ballast.text.loading import Text
from ballast.text.marks import Layout, Start, marks_of, start_of
from ballast.wire.llama_cpp.request import InfillRequest
from ballast.wire.openai.request import (
    MAX_CHOICES,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    to_sampling,
)
from ballast.wire.parsing import refuse


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builds the jobs of all requests to one model."""

    text: Text
    limits: Limits
    force_think: bool = False
    trust_templates: bool = False
    """Whether requests may contain a chat template."""
    split_reasoning: bool = True
    """Whether reasoning is separated from the content."""
    keeps_snapshots: bool = False
    """Whether the model has recurrent state."""
    grammars: GrammarCompiler = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # At start, because building the vocabulary's table holds the GIL for most of a second.
        object.__setattr__(self, "grammars", GrammarCompiler(self.text.tokenizer))

    def chat(self, body: ChatCompletionRequest, *, split_reasoning: bool | None = None) -> Job:
        """The job of a chat request. `split_reasoning` overrides the server's setting. Raises RequestError,
        CapacityError."""
        use = tool_use(body)
        text = self._text_of(body)
        prompt = self._chat_prompt(body, use, text)
        start = _start_of_reply(prompt, body, text)
        splits = self.split_reasoning if split_reasoning is None else split_reasoning
        splits = body.hides_reasoning or (splits and not body.keeps_reasoning_inside)
        layout = self._layout(start, use, splits, text)
        job = self._job(body, [prompt], "messages", body.num_logprobs)
        spellings = self.text.tokenizer.reply.spellings
        ends = {token_id: spellings[mark] for token_id, mark in layout.marks.items() if spellings[mark] in body.stop}
        ineffective = tuple(ineffective_fields(body, text.require_template(), start))
        opens = self.force_think and not continues_final(body) and thinking_enabled(body) is not False
        shows_opening = opens and layout.channels is None and not THINKING & set(layout.marks.values())
        job = replace(
            job,
            layout=layout,
            is_call_forced=use is not None and use.is_named,
            opening=f"{text.require_template().tags.begin}\n" if shows_opening else "",
            sampling=replace(job.sampling, stop_token_ids=job.sampling.stop_token_ids | ends.keys()),
            hidden_ids=job.hidden_ids | ends.keys(),
            stop_reasons={**job.stop_reasons, **ends},
            hide_reasoning=body.hides_reasoning,
            ineffective=ineffective,
            snapshot_before=frozenset(trigger_tokens(text.tokenizer) if self.keeps_snapshots and use else ()),
        )
        job = self._constrain_chat(job, body, use, start, text)
        return with_token_rules(job, body, self.text.tokenizer, start)

    def _text_of(self, body: ChatCompletionRequest) -> Text:
        return text_with_template(self.text, body.chat_template, is_trusted=self.trust_templates)

    def _constrain_chat(
        self, job: Job, body: ChatCompletionRequest, use: ToolUse | None, start: Start, text: Text
    ) -> Job:
        shape = _shape(body, use)
        if use is None and shape is None:
            return job
        if use is not None:
            _check_may_stop(body, "tools")
            if shape is None and not use.is_required:
                reply = self.text.tokenizer.reply
                calls = self._compile_calls(body, use, reply.read_style_of(text.require_template().source))
                if reply.has_channels:
                    return _with_constraint(job, free_calls(calls, start, self.text.tokenizer))
                return _with_constraint(job, LazyToolGrammar(calls, trigger_tokens(self.text.tokenizer)))
        if self.text.tokenizer.reply.has_channels:
            return self._constrain_channels(job, body, use, shape, start)
        if (start := constrained_start(start, thinking_enabled(body))) is Start.CONTENT:
            job = replace(job, layout=replace(job.layout, start=start))
        prefix = reasoning_prefix(start, self.text.tokenizer)
        if use is None:
            return self._constrain(job, body, shape, prefix)
        form = self.text.tokenizer.reply.style_of(text.require_template().source)
        job = replace(job, ineffective=(*job.ineffective, *(shape.left_out if shape else ())))
        return _with_constraint(job, self._compile_calls(body, use, form, prefix))

    def _constrain_channels(
        self, job: Job, body: ChatCompletionRequest, use: ToolUse | None, shape: Source | None, start: Start
    ) -> Job:
        """`_constrain_chat` for a reply on channels that must call or have a form."""
        wrap = partial(last_message, start=start, tokenizer=self.text.tokenizer, body=body, is_answer=use is None)
        if use is None:
            return self._constrain(job, body, shape, None, wrap)
        job = replace(job, ineffective=(*job.ineffective, *(shape.left_out if shape else ())))
        return _with_constraint(job, wrap(self._compile_calls(body, use, "channels")))

    def _compile_calls(
        self, body: ChatCompletionRequest, use: ToolUse, form: CallStyle, prefix: ReasoningPrefix | None = None
    ) -> Grammar:
        """The grammar of the calls. A schema that no grammar can enforce is dropped unless its tool is strict: only a
        strict tool guarantees that arguments follow it. Raises RequestError for a part that cannot be enforced."""
        tokenizer = self.text.tokenizer
        or_else = body.response_format.embedded() if body.response_format and not use.is_required else None

        def compiled(*, any_arguments: bool) -> Grammar:
            source = tool_calls(
                use.tools,
                tokenizer,
                form,
                only=use.only,
                parallel=use.is_parallel,
                or_else=or_else,
                any_arguments=any_arguments,
            )
            return self.grammars.compile(source, prefix)

        try:
            return compiled(any_arguments=False)
        except RequestError:
            try:
                return compiled(any_arguments=True)
            except RequestError:
                self._check_alone([*strict_schemas(use.tools), *filter(None, [body.form()])])
                raise

    def _check_alone(self, sources: Iterable[Source]) -> None:
        """Compile each source separately, to raise RequestError for the invalid one."""
        for source in sources:
            self.grammars.compile(source)

    def chat_prompt(self, body: ChatCompletionRequest) -> Prompt:
        """The prompt of the job that `chat` makes. Raises RequestError."""
        return self._chat_prompt(body, tool_use(body), self._text_of(body))

    def chat_text(self, body: ChatCompletionRequest) -> str:
        """The text of `chat_prompt`. Raises RequestError."""
        return unescape(self._rendered(body, tool_use(body), self._text_of(body)))

    def _rendered(self, body: ChatCompletionRequest, use: ToolUse | None, text: Text) -> str:
        return render_prompt(text, body, () if use is None else use.tools, always_think=self.force_think)

    def _chat_prompt(self, body: ChatCompletionRequest, use: ToolUse | None, text: Text) -> Prompt:
        rendered = self._rendered(body, use, text)
        tokenizer = self.text.tokenizer
        may_cut = body.truncate_prompt_tokens is not None
        ids = self._encode(rendered, "messages", tokenizer.encode_prompt, may_cut=may_cut)
        beginnings = render_beginnings(text, body, () if use is None else use.tools)
        are_wanted = self.keeps_snapshots and not may_cut
        repeated = repeated_tokens(ids, rendered, beginnings if are_wanted else (), tokenizer.encode_prompt)
        if body.add_special_tokens and tokenizer.add_bos and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id, *ids]
            repeated = tuple(count + 1 for count in repeated)
        return Prompt(tuple(truncated(ids, body, self.limits)), snapshots_at=repeated)

    def _layout(self, start: Start, use: ToolUse | None, split_reasoning: bool, text: Text) -> Layout:
        """How to split the reply into reasoning, content and calls."""
        reply = self.text.tokenizer.reply
        calling = {} if use is None else marks_of(self.text.tokenizer, reply.calling)
        if use is not None and not calling:
            refuse("tools", "this model's vocabulary has no tokens for tool calls in a supported format")
        if reply.has_channels:
            return channel_layout(self.text.tokenizer, start, use, splits_reasoning=split_reasoning)
        read_calls = reader_of(reply.read_style_of(text.require_template().source), () if use is None else use.tools)
        if not split_reasoning:
            return Layout(calling, read_calls=read_calls)
        return Layout(marks_of(self.text.tokenizer, reply.thinking) | calling, start, read_calls)

    def completion(self, body: CompletionRequest) -> Job:
        """The job of a text completion. Prompts of token ids are used unchanged; with a suffix, prompts are
        the text before the gap. Raises RequestError, CapacityError."""
        self._check_choices(body.n or 1, len(body.prompt))
        fim = require_fim(self.text, "suffix") if body.suffix else None
        if fim is None:
            prompts = [self._prompt(prompt, body) for prompt in body.prompt]
        else:
            suffix = self._plain_ids(body.suffix or "", "suffix")
            prefixes = (self._plain_ids(prompt, "prompt") for prompt in body.prompt)
            may_begin = body.add_special_tokens is not False
            gaps = (filling(prefix, suffix, self.text, fim, may_begin=may_begin) for prefix in prefixes)
            prompts = [Prompt(tuple(gap)) for gap in gaps]
        job = self._job(body, prompts, "prompt", body.num_logprobs, echo=bool(body.echo))
        job = with_token_rules(self._constrain(job, body, body.form(), None), body, self.text.tokenizer)
        return job if fim is None else ended_by(job, fim.ends)

    def infill(self, body: InfillRequest) -> Job:
        """The job of a request to fill a gap, in llama.cpp's form. Raises RequestError, CapacityError."""
        fim = require_fim(self.text)
        ids = infill_prompt(body, self.text, fim)
        return ended_by(self.completion(body.model_copy(update={"prompt": [ids]})), fim.ends)

    def _plain_ids(self, text: str | list[int], field: str) -> list[int]:
        """Token ids of one side of a gap. Control tokens in it are read as plain text."""
        if not isinstance(text, str):
            self.check_ids(field, text)
            return text
        return self._encode(text, field, partial(self.text.tokenizer.encode, parse_special=False), may_cut=False)

    def _prompt(self, prompt: str | list[int], body: CompletionRequest) -> Prompt:
        tokenizer = self.text.tokenizer
        if isinstance(prompt, str):
            ids = self._encode(prompt, "prompt", tokenizer.encode, may_cut=body.truncate_prompt_tokens is not None)
            adds_bos = tokenizer.add_bos and body.add_special_tokens is not False
            if not adds_bos or tokenizer.bos_id is None or ids[:1] == [tokenizer.bos_id]:
                return Prompt(tuple(truncated(ids, body, self.limits)))
            kept = truncated([tokenizer.bos_id, *ids], body, self.limits)
            return Prompt(tuple(kept), num_added=1 if kept[:1] == [tokenizer.bos_id] else 0)
        prompt = list(truncated(prompt, body, self.limits))
        if len(prompt) >= self.limits.max_model_tokens:
            refuse_length(self.limits, f"at least {len(prompt) + 1} tokens ({len(prompt)} in the prompt)", "prompt")
        self.check_ids("prompt", prompt)
        return Prompt(tuple(prompt))

    def _encode(
        self, prompt: str, prompt_field: str, encode: Callable[[str], list[int]], *, may_cut: bool
    ) -> list[int]:
        """Token ids of a prompt. Raises RequestError early for text that is too long for any tokenisation, unless it
        may be truncated (`may_cut`)."""
        if not self.text.tokenizer.has_vocabulary:
            refuse(prompt_field, WHY)
        least = self.text.tokenizer.fewest_tokens(prompt)
        if least >= self.limits.max_model_tokens and not may_cut:
            refuse_length(self.limits, f"at least {least + 1} tokens (at least {least} in the prompt)", prompt_field)
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
            _check_needs_no_text(body, num_logprobs, echo=echo)
        self.check_ids("stop_token_ids", body.stop_token_ids or ())
        self.check_ids("logit_bias", tuple(body.logit_bias or ()))
        self.check_ids("allowed_token_ids", body.allowed_token_ids or ())
        if not all(prompt.ids for prompt in prompts):
            refuse(prompt_field, "the prompt is empty; at least one token is needed")
        n = body.n or 1
        self._check_choices(n, len(prompts))
        max_field, requested = requested_tokens(body)
        longest = max(len(prompt.ids) for prompt in prompts)
        max_tokens = granted_tokens(self.limits, longest, prompt_field, max_field, requested)
        if body.min_tokens is not None and body.min_tokens > max_tokens:
            refuse("min_tokens", f"{body.min_tokens} is more than {max_field}, which is {max_tokens}")
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
            prompt_logprobs=body.prompt_logprobs,
            discard_tokens=requested == 0,
            skip_control=body.skip_special_tokens is not False,
            stop_reasons={
                token_id: token_id
                for token_id in body.stop_token_ids or ()
                if body.ignore_eos or token_id not in eos_ids
            },
            lowered_max_tokens=max_tokens if requested is not None and requested > max_tokens else None,
            priority=body.priority,
            salt=body.salt,
            report_progress=bool(body.return_progress),
        )

    def _constrain(
        self,
        job: Job,
        body: GenerationRequest,
        source: Source | None,
        prefix: ReasoningPrefix | None,
        wrap: Callable[[Grammar], Constraint] = lambda grammar: grammar,
    ) -> Job:
        """The job with the grammar of `source` as its constraint, or as a part of that. Raises RequestError,
        CapacityError."""
        if source is None:
            return job
        _check_may_stop(body, source.param)
        try:
            grammar = self.grammars.compile(source, prefix)
        except RequestError:
            if source.or_else is None:
                raise
            source = source.or_else
            grammar = self.grammars.compile(source, prefix)
        return _with_constraint(replace(job, ineffective=(*job.ineffective, *source.left_out)), wrap(grammar))

    def _check_choices(self, n: int, num_prompts: int) -> None:
        """Check that all choices fit in the queue and in the batch, because they are admitted together."""
        most = min(MAX_CHOICES, self.limits.max_queue + self.limits.max_batch_size)
        if n * num_prompts > most:
            of_prompts = f" for each of {num_prompts} prompts" if num_prompts > 1 else ""
            refuse("n", f"{n} choices{of_prompts} exceed the {most} that this server accepts per request")

    def check_ids(self, name: str, ids: Sequence[int]) -> None:
        """Raise RequestError for the field `name` if it contains an id outside the vocabulary."""
        size = self.text.tokenizer.vocab_size
        for token_id in ids:
            if not 0 <= token_id < size:
                refuse(name, f"token id {token_id} is not in the vocabulary; expected 0 to {size - 1}")


def _start_of_reply(prompt: Prompt, body: ChatCompletionRequest, text: Text) -> Start:
    tokenizer, release = text.tokenizer, text.require_template().release
    thinks = release is not None and release.thinks and not continues_final(body)
    if tokenizer.reply.has_channels:
        return channels_of(reversed(prompt.ids), tokenizer)
    marks = marks_of(tokenizer, tokenizer.reply.thinking)
    return start_of(reversed(prompt.ids), marks, tokenizer.eos_ids, thinks=thinks)


def _shape(body: ChatCompletionRequest, use: ToolUse | None) -> Source | None:
    """The requested grammar of the reply's content, if it can be enforced. Raises RequestError."""
    shape = body.form()
    if shape is None:
        return None
    name = shape.param.split(".")[0]
    if name == "response_format" and continues_final(body):
        refuse(name, "cannot be combined with continuing a message, because the grammar would not cover its beginning")
    if use is not None and name != "response_format":
        refuse(name, "cannot be combined with tools; send tool_choice: none, or no tools")
    return shape


def _check_may_stop(body: GenerationRequest, param: str) -> None:
    if body.ignore_eos:
        refuse("ignore_eos", f"the grammar of {param} decides where the text ends")


def _check_needs_no_text(body: GenerationRequest, num_logprobs: int | None, *, echo: bool) -> None:
    """Refuse fields that need the text of tokens, for a model without a vocabulary."""
    source = body.form()
    requested = {
        "stop": bool(body.stop),
        "echo": echo,
        "logprobs": num_logprobs is not None,
        "bad_words": bool(body.bad_words),
        "prompt_logprobs": body.prompt_logprobs is not None,
        source.param if source else "": source is not None,
    }
    for name, is_requested in requested.items():
        if is_requested:
            refuse(name, WHY)


def _with_constraint(job: Job, constraint: Constraint) -> Job:
    return replace(job, sampling=replace(job.sampling, constraint=constraint))
