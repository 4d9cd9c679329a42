"""Requests of Ollama's API. Chats and prompts are translated to chat requests; raw prompts, and those with a suffix, to
text completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from ballast.engine.request import SamplingFields
from ballast.wire.field_rules import Holds
from ballast.wire.field_schemas import items
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.known_fields import read_fields
from ballast.wire.ollama.other_fields import (
    COMMON_RULES,
    GENERATE_RULES,
    MESSAGE,
    MESSAGE_ITEMS,
    NAME_RULES,
    OPTION_RULES,
    PULL_RULES,
)
from ballast.wire.openai.chat_tools import MAX_TOOLS
from ballast.wire.openai.message_fields import FUNCTION_SCHEMA, TOOL
from ballast.wire.openai.request import (
    MAX_TOP_LOGPROBS,
    ChatCompletionRequest,
    CompletionRequest,
)
from ballast.wire.parsing import (
    WHOLE,
    Objects,
    StrictModel,
    Strings,
    check_lengths,
    parse_json,
    refuse,
    validated,
    with_fields,
)

LATEST = ":latest"
"""The default tag."""
_SAME_NAMES = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty")
"""Options with the names that the chat request has."""
_DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
_OPTIONS = {
    r"max_tokens": "options.num_predict",
    r"repetition_penalty": "options.repeat_penalty",
    rf"({'|'.join(_SAME_NAMES)}|stop)": r"options.\1",
    r"response_format(\.json_schema)?": "format",
    r"(reasoning_effort|thinking)": "think",
}
CHAT_FIELDS: Mapping[str, str] = _OPTIONS
"""Field names for `client_field_names`."""
GENERATE_FIELDS: Mapping[str, str] = {**_OPTIONS, r"messages(\..*)?": "prompt"}


_TOOL_ITEMS = items("type", "function", type={"const": "function"}, function=FUNCTION_SCHEMA)


if TYPE_CHECKING:

    class _SamplingOptions(StrictModel, SamplingFields): ...
else:
    _SamplingOptions = with_fields(StrictModel, SamplingFields, _SAME_NAMES, _DEFAULTS)


class OllamaOptions(_SamplingOptions):
    """`options`, with Ollama's defaults."""

    other_fields = OPTION_RULES

    num_predict: Annotated[int, WHOLE] | None = None
    """0 and less: as many as fit."""
    stop: str | Strings | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1), WHOLE] | None = None
    """Number of previous tokens that repeat_penalty covers: -1, all; 0, none. Other numbers are ignored and mean
    all."""


class OllamaRequest(StrictModel):
    """The common fields of /api/chat and /api/generate."""

    other_fields = COMMON_RULES

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    """true by default."""
    options: OllamaOptions | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    """json: any object. Otherwise the JSON schema of the reply."""
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    """Whether the model thinks, or the level of effort. Reasoning has a separate field in the reply."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    """Only with logprobs."""

    @property
    def streams(self) -> bool:
        """Whether the reply is a stream."""
        return self.stream is not False


class OllamaChatRequest(OllamaRequest):
    """Body of POST /api/chat."""

    messages: Annotated[Annotated[Objects, MESSAGE_ITEMS] | None, Holds(MESSAGE)] = None
    """None or an empty list only loads the model."""
    tools: Annotated[Annotated[Objects, Field(max_length=MAX_TOOLS), _TOOL_ITEMS] | None, Holds(TOOL)] = None


class OllamaGenerateRequest(OllamaRequest):
    """Body of POST /api/generate."""

    other_fields = GENERATE_RULES

    prompt: str | None = None
    """None, or an empty text without a suffix, only loads the model."""
    system: str | None = None
    suffix: str | None = None
    """The text after the gap that the reply fills. Only for models with fill-in-the-middle tokens."""
    raw: bool | None = None
    """true: the prompt is continued without the chat template."""

    @property
    def is_text(self) -> bool:
        """Whether it is a text completion, which does not use the chat template."""
        return bool(self.raw or self.suffix)


class OllamaNameRequest(StrictModel):
    """Body of POST /api/show."""

    other_fields = NAME_RULES

    model: Annotated[str, Field(min_length=1)]
    verbose: bool | None = None


class OllamaPullRequest(StrictModel):
    """Body of POST /api/pull."""

    other_fields = PULL_RULES

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None


Body = TypeVar("Body", bound=StrictModel)


def parse_ollama(kind: type[Body], data: bytes, max_model_tokens: int, ignored: IgnoredFields) -> Body:
    """Parse a body, and note unknown fields in `ignored`. Raises RequestError. Must not run on the event loop."""
    value = parse_json(data)
    check_lengths(value, max_model_tokens)
    return read_fields(kind, value, ignored)


def chat_of(body: OllamaChatRequest, ignored: IgnoredFields) -> ChatCompletionRequest:
    """A chat as a chat request. Raises RequestError."""
    messages = list(_messages(body.messages or ()))
    return _chat(body, {"messages": messages, "tools": body.tools}, ignored)


def prompted_chat(body: OllamaGenerateRequest, ignored: IgnoredFields) -> ChatCompletionRequest:
    """A prompt as a chat request of one turn. Raises RequestError."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    return _chat(body, {"messages": [*system, {"role": "user", "content": body.prompt or ""}]}, ignored)


def completion_of(body: OllamaGenerateRequest, ignored: IgnoredFields) -> CompletionRequest:
    """A raw prompt, or one with a suffix, as a text completion. Raises RequestError."""
    if body.system:
        refuse("system", "a prompt with raw or suffix is used without the chat template; leave it out")
    if body.think:
        refuse("think", "a reply to a prompt with raw or suffix is not split into reasoning and answer; leave it out")
    logprobs = {"logprobs": body.top_logprobs or 0} if body.logprobs else {}
    fields = {"prompt": body.prompt or "", "suffix": body.suffix, **_generation(body, ignored), **logprobs}
    return validated(CompletionRequest, _given(fields))


def _chat(body: OllamaRequest, fields: Mapping[str, Any], ignored: IgnoredFields) -> ChatCompletionRequest:
    think = {"thinking": body.think} if isinstance(body.think, bool) else {"reasoning_effort": body.think}
    logprobs = {"logprobs": True, "top_logprobs": body.top_logprobs} if body.logprobs else {}
    return validated(ChatCompletionRequest, _given({**fields, **_generation(body, ignored), **think, **logprobs}))


def _generation(body: OllamaRequest, ignored: IgnoredFields) -> dict[str, Any]:
    options = body.options or OllamaOptions()
    if (options.repeat_last_n or 0) > 0 and options.repeat_penalty is not None:
        ignored.add("options.repeat_last_n")
    if body.top_logprobs and not body.logprobs:
        refuse("top_logprobs", "is only allowed with logprobs: true")
    return {
        "model": body.model,
        "max_tokens": options.num_predict if (options.num_predict or 0) > 0 else None,
        **{name: getattr(options, name) for name in _SAME_NAMES},
        "stop": options.stop,
        "repetition_penalty": None if options.repeat_last_n == 0 else options.repeat_penalty,
        "response_format": _response_format(body.format),
    }


def _response_format(form: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form == "":
        return None
    if form == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": form}}


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _messages(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages in OpenAI's form. Calls without an id get one. A result gets the id of the first call of its tool
    that has no result yet."""
    unanswered: list[tuple[str, Any]] = []
    for n, message in enumerate(messages):
        content = message.get("content")
        out = {"role": message.get("role"), "content": "" if content is None else content}
        if not isinstance(out["content"], str):
            refuse(f"messages.{n}.content", "must be a string")
        if message.get("thinking"):
            out["reasoning_content"] = message["thinking"]
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            refuse(f"messages.{n}.tool_calls", "must be a list")
        if calls:
            unanswered = []
            out["tool_calls"] = [_call(call, n, m, unanswered) for m, call in enumerate(calls)]
        if out["role"] == "tool":
            given, name = message.get("tool_call_id"), message.get("tool_name")
            out["tool_call_id"] = given if isinstance(given, str) else _take(unanswered, name)
            if name is not None:
                out["name"] = name
        yield _given(out)


def _call(call: Any, n: int, m: int, unanswered: list[tuple[str, Any]]) -> dict[str, Any]:
    if not isinstance(call, dict):
        refuse(f"messages.{n}.tool_calls.{m}", "must be an object")
    call_id = call["id"] if isinstance(call.get("id"), str) and call["id"] else f"call_{n}_{m}"
    function = call.get("function")
    unanswered.append((call_id, function.get("name") if isinstance(function, dict) else None))
    return {"id": call_id, "type": "function", "function": function}


def _take(unanswered: list[tuple[str, Any]], name: Any) -> str | None:
    """The id of the call that a result of the tool `name` belongs to; None if every call has a result."""
    same = [each for each in unanswered if each[1] == name] or unanswered
    if not same:
        return None
    unanswered.remove(same[0])
    return same[0][0]
