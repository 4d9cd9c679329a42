"""Request bodies of OpenAI's API: the honoured fields. `other_fields.py` defines the handling of other fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import orjson
from pydantic import BeforeValidator, Field, PrivateAttr, SkipValidation, field_validator

from ballast.engine.request import NO_SALT, SamplingFields, SamplingParams, salt_of
from ballast.errors import RequestError, shown
from ballast.wire.field_rules import Holds, NoEffect
from ballast.wire.field_schemas import InPlaceSchema, MoreSchema
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.known_fields import read_fields
from ballast.wire.openai.chat_tools import (
    MAX_TOOLS,
    ToolChoice,
    read_custom_tools,
    replace_media_of_results,
    skip_foreign_tools,
)
from ballast.wire.openai.file_parts import read_files
from ballast.wire.openai.message_fields import MESSAGE, MESSAGE_ITEMS, TOOL, TOOL_ITEMS
from ballast.wire.openai.other_fields import CHAT_RULES, GENERATION_RULES, TEXT_RULES
from ballast.wire.openai.response_format import FormFields
from ballast.wire.openai.thinking import ReasoningChoice, ReasoningEffort, ThinkingSwitch
from ballast.wire.parsing import (
    WHOLE,
    WHOLE_ITEMS,
    Objects,
    StrictModel,
    check_lengths,
    parse_json,
    whole_items,
    with_fields,
)

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_ALLOWED_IDS = 1 << 18
MAX_ID_DIGITS = 10
REQUEST_ID = r"^[\x21-\x7e]{1,128}$"
RANDOM_SEED = -1
"""The convention of other servers and their clients."""
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_PRIORITY = 2**31 - 1
MAX_SALT_CHARS = 1024


_STOP_STRING = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
STOP_SCHEMA = {
    "anyOf": [
        _STOP_STRING,
        {"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP_STRINGS},
        {"type": "null"},
    ]
}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}, "minItems": 1, "maxItems": MAX_CHOICES},
    ]
}


def _strings(value: Any) -> Any:
    """Converts a string to a list of one, and null to an empty list."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return [value]
    raise ValueError("must be a string or a list of strings")


def _token_ids_as_keys(value: Any) -> Any:
    """Converts the keys of logit_bias to integers, because JSON's keys are strings."""
    if not isinstance(value, Mapping):
        return value
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"must have at most {MAX_LOGIT_BIAS} entries")
    wrong = next((key for key in value if not (len(key) <= MAX_ID_DIGITS and key.isascii() and key.isdigit())), None)
    if wrong is not None:
        raise ValueError(f"keys must be token ids, and {shown(wrong)} is not one; /tokenize returns the ids of a text")
    return {int(key): bias for key, bias in value.items()}


def _prompts(value: Any) -> Any:
    """Converts a string, a list of token ids, or a list of these to a list of prompts."""
    value = whole_items(value)
    is_one = not isinstance(value, list) or (value and type(value[0]) is int)
    prompts = [value] if is_one else [whole_items(prompt) for prompt in value[: MAX_CHOICES + 1]]
    if not prompts:
        raise ValueError("must not be empty")
    if len(prompts) > MAX_CHOICES:
        raise ValueError(f"has {len(value)} prompts; at most {MAX_CHOICES} are allowed")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(type(item) is int for item in prompt)):
            raise ValueError("must be a string, a list of token ids, or a list of these")
    return prompts


class StreamOptions(StrictModel):
    """`stream_options` of both endpoints."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, NoEffect("chunks are not padded; their text is the same")] = None


if TYPE_CHECKING:

    class _SamplingBody(FormFields, SamplingFields): ...
else:
    _SamplingBody = with_fields(FormFields, SamplingFields)


class GenerationRequest(_SamplingBody):
    """The fields that chat and text completions share."""

    other_fields = GENERATION_RULES

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int, Field(ge=-1), WHOLE] | None = None
    """A larger number is lowered to --max_new_tokens, which X-Ballast-Max-Tokens reports. -1, the default: as many as
    fit. 0 is useful only for a completion that echoes its prompt."""
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), WHOLE] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY - 1, le=MAX_PRIORITY), WHOLE] | None = None
    """Lower numbers are served first. Limited by --client_priority."""
    do_sample: bool | None = None
    """false: greedy sampling, as with temperature: 0."""
    repeat_last_n: Annotated[int, Field(ge=-1), WHOLE] | None = None
    """Number of previous tokens that repetition_penalty covers, as in llama.cpp's server. Only -1 (all, the default)
    and 0 (none) are accepted."""
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
        Field(fail_fast=True),
        BeforeValidator(_strings),
        Field(max_length=MAX_STOP_STRINGS),
        InPlaceSchema(STOP_SCHEMA),
    ] = Field([])
    """A stop string ends the text. It does not match inside tool calls."""
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0), WHOLE]], Field(fail_fast=True, max_length=256)] | None
    ) = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: (
        Annotated[
            dict[int, Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=MAX_LOGIT_BIAS),
            BeforeValidator(_token_ids_as_keys),
            MoreSchema({"propertyNames": {"pattern": f"^[0-9]{{1,{MAX_ID_DIGITS}}}$"}}),
        ]
        | None
    ) = None

    allowed_token_ids: (
        Annotated[
            list[int],
            Field(fail_fast=True, min_length=1, max_length=MAX_ALLOWED_IDS),
            WHOLE_ITEMS,
            MoreSchema({"items": {"type": "integer", "minimum": 0}}),
        ]
        | None
    ) = None
    """The reply may contain only these tokens, which must include one that ends the reply."""
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
            Field(fail_fast=True, max_length=MAX_BAD_WORDS),
        ]
        | None
    ) = None
    """The reply does not contain the token sequence of any of these words."""
    skip_special_tokens: bool | None = None
    """false: the text contains the model's control tokens, except those that end or divide the reply."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer's BOS is put before the prompt. Default: true for texts, false for chats, whose template
    writes it."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1), WHOLE, MoreSchema({"not": {"const": 0}})] | None = None
    """Keep only this number of prompt tokens; -1: as many as leave room for max_tokens."""
    truncation_side: Literal["left", "right"] | None = None
    """The side that truncate_prompt_tokens cuts. left, the default, keeps the prompt's end."""
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    """Has an effect only in a stream."""
    return_token_ids: bool | None = None
    """The reply contains the token ids of the reply and of the prompt."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    """Return the log probabilities of the prompt's tokens, with this number of alternatives. Not in a stream."""
    return_tokens_as_token_ids: bool | None = None
    """Log probabilities show a token as token_id:5 instead of its text."""
    request_id: Annotated[str, Field(pattern=REQUEST_ID)] | None = None
    """The reply's id ends with this text."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    """Requests share the prefix cache and its copies in host memory and on disk only if their salt is the same. With a
    secret salt, other clients cannot find out by timing whether a prompt was sent before."""
    extra_key: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    """SGLang's name of cache_salt. If both are sent, they must be the same."""

    @field_validator("seed")
    @classmethod
    def _random_seed(cls, value: int | None) -> int | None:
        return None if value == RANDOM_SEED else value

    @property
    def salt(self) -> tuple[int, int]:
        """The salt of the request's blocks in the prefix cache."""
        if self.cache_salt is None and self.extra_key is None:
            return NO_SALT
        return salt_of(orjson.dumps([self.cache_salt, self.extra_key]).decode())


class ChatCompletionRequest(GenerationRequest):
    """Body of POST /v1/chat/completions. Messages are checked where they are normalised, in `ballast.text`."""

    other_fields = CHAT_RULES

    _custom_tools: frozenset[str] = PrivateAttr(default=frozenset())

    messages: Annotated[Annotated[Objects, Field(min_length=1)], Holds(MESSAGE), MESSAGE_ITEMS]
    max_tokens: Annotated[int, Field(ge=-1), WHOLE, MoreSchema({"not": {"const": 0}})] | None = None
    """A larger number is lowered to --max_new_tokens, which X-Ballast-Max-Tokens reports. -1, the default: as many as
    fit."""
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None
    """A Jinja template that replaces the model's. Only with --trust_request_chat_template."""
    thinking: ThinkingSwitch | bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    reasoning: ReasoningChoice | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1), WHOLE] | None = None
    """Maximum number of reasoning tokens, without tags; -1: no limit."""
    include_reasoning: bool | None = None
    """false: reasoning is left out of the reply."""
    separate_reasoning: bool | None = None
    """false: reasoning stays in the content, with its tags, as with --reasoning_field none."""
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    """none: as separate_reasoning: false. Other values have no effect."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    logprobs: bool | None = None
    """One entry per generated token, including the end token and the tokens of a stop string."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    tools: Annotated[Annotated[Objects, Field(max_length=MAX_TOOLS), TOOL_ITEMS] | None, Holds(TOOL)] = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def custom_tools(self) -> frozenset[str]:
        """Names of functions that are custom tools to the client."""
        return self._custom_tools

    @custom_tools.setter
    def custom_tools(self, names: frozenset[str]) -> None:
        self._custom_tools = names

    @property
    def effort(self) -> str | None:
        """The requested reasoning effort, from either field."""
        nested = self.reasoning.effort if self.reasoning else None
        return nested if self.reasoning_effort is None else self.reasoning_effort

    @property
    def thinking_budget(self) -> int | None:
        """Maximum number of reasoning tokens, from any of the fields for it; None: no separate limit."""
        budgets = [
            None if self.thinking_token_budget == -1 else self.thinking_token_budget,
            self.thinking.budget_tokens if isinstance(self.thinking, ThinkingSwitch) else None,
            self.reasoning.max_tokens if self.reasoning else None,
        ]
        return min((each for each in budgets if each is not None), default=None)

    @property
    def hides_reasoning(self) -> bool:
        """Whether the reply omits reasoning."""
        return self.include_reasoning is False or bool(self.reasoning and self.reasoning.exclude)

    @property
    def keeps_reasoning_inside(self) -> bool:
        """Whether reasoning stays in the content."""
        return self.separate_reasoning is False or self.reasoning_format == "none"

    @property
    def num_logprobs(self) -> int | None:
        """Number of alternatives to report with each token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    other_fields = TEXT_RULES

    prompt: Annotated[SkipValidation[list[str | list[int]]], BeforeValidator(_prompts), InPlaceSchema(PROMPT_SCHEMA)]
    """Checked only by _prompts, because there may be millions of ids."""

    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    """Alternatives per token. There is one entry per generated token, including the end token and the tokens of a stop
    string; their text_offset is the end of the text."""
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1), WHOLE] | None = None
    suffix: str | None = None
    """The text after the gap that the reply fills. Only for models with fill-in-the-middle tokens. Empty: the prompt is
    continued."""

    may_have_no_reply: ClassVar[bool] = False
    """Whether max_tokens may be 0 without echo. The prompt is then only computed and kept in the prefix cache."""

    @property
    def num_logprobs(self) -> int | None:
        """Number of alternatives to report with each token; None: no log probabilities."""
        return self.logprobs


Body = TypeVar("Body", ChatCompletionRequest, CompletionRequest)


def parse_body(kind: type[Body], data: bytes, max_model_tokens: int, ignored: IgnoredFields) -> Body:
    """Parse a body as `kind`, and note unknown fields in `ignored`. Raises RequestError, which names the first invalid
    field.

    Time and memory are proportional to the length of `data`. Must not run on the event loop.
    """
    return checked_body(kind, parse_json(data), max_model_tokens, ignored)


def checked_body(kind: type[Body], value: dict[str, Any], max_model_tokens: int, ignored: IgnoredFields) -> Body:
    """The same for the fields of a parsed body. May change `value`."""
    check_lengths(value, max_model_tokens)
    custom_names: frozenset[str] = frozenset()
    if kind is ChatCompletionRequest:
        skip_foreign_tools(value, ignored)
        replace_media_of_results(value, ignored)
        custom_names = read_custom_tools(value)
    body = read_fields(kind, value, ignored)
    if isinstance(body, ChatCompletionRequest):
        read_files(body.messages)
        body.custom_tools = custom_names
    check_together(body)
    return body


def check_together(body: GenerationRequest) -> None:
    """Check combinations of fields. Raises RequestError."""
    if body.stream_options and not body.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    if body.prompt_logprobs is not None and (body.stream or (isinstance(body, CompletionRequest) and body.echo)):
        raise RequestError(
            "prompt_logprobs is not allowed with stream: true, nor with echo: true", param="prompt_logprobs"
        )
    if body.truncation_side and body.truncate_prompt_tokens is None:
        raise RequestError("truncation_side is only allowed with truncate_prompt_tokens", param="truncation_side")
    if body.truncate_prompt_tokens == 0:
        raise RequestError(
            "truncate_prompt_tokens: must be at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
        )
    if (body.repeat_last_n or 0) > 0 and body.repetition_penalty not in (None, 1.0):
        raise RequestError(
            "repeat_last_n: the repetition penalty always covers the whole text; send -1, or 0 for no penalty",
            param="repeat_last_n",
        )
    if isinstance(body, ChatCompletionRequest):
        if body.hides_reasoning and body.keeps_reasoning_inside:
            raise RequestError("include_reasoning: excludes separate_reasoning: false", param="include_reasoning")
        if body.top_logprobs and not body.logprobs:
            raise RequestError("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
        if body.max_tokens == 0:
            raise RequestError("max_tokens: must be at least 1", param="max_tokens")
    elif isinstance(body, CompletionRequest):
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise RequestError(
                "best_of: this server returns every choice; leave it out, or set it to n",
                param="best_of",
            )
        if body.suffix and (body.echo or body.truncate_prompt_tokens is not None):
            other = "echo" if body.echo else "truncate_prompt_tokens"
            raise RequestError(f"suffix: excludes {other}; leave one of them out", param="suffix")
        if body.max_tokens == 0 and not body.echo and not body.may_have_no_reply:
            raise RequestError("max_tokens: must be at least 1 without echo: true", param="max_tokens")


SAMPLING_FIELDS = tuple(each.name for each in fields(SamplingParams) if each.name in GenerationRequest.model_fields)
"""Fields with the same name in the engine."""


def to_sampling(
    body: GenerationRequest, *, max_tokens: int, eos_ids: frozenset[int], num_logprobs: int | None = None
) -> SamplingParams:
    """The engine's sampling parameters for one choice, with the engine's defaults for missing fields. `max_tokens` is
    the number that the server grants."""
    sampling: dict[str, Any] = {
        name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None
    } | {
        "max_tokens": max_tokens,
        "top_k": max(0, body.top_k or 0),
        "stop_token_ids": frozenset(body.stop_token_ids or ()) | (frozenset() if body.ignore_eos else eos_ids),
        "logprobs": num_logprobs,
    }
    if body.do_sample is False:
        sampling["temperature"] = 0.0
    if body.repeat_last_n == 0:
        sampling["repetition_penalty"] = 1.0
    return SamplingParams(**sampling)
