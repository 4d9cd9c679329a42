"""Requests of Anthropic's Messages API. Each is translated to a ChatCompletionRequest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from ballast.wire.anthropic.documents import TYPES, document_text, is_text_document, note_citations
from ballast.wire.anthropic.other_fields import BLOCK, MESSAGE, MESSAGES_RULES, THINKING, TOOL, TOOL_CHOICE
from ballast.wire.client_tools import anthropic_function, skip
from ballast.wire.field_names import MESSAGES_FIELDS
from ballast.wire.field_rules import Holds, Shape
from ballast.wire.field_schemas import MoreSchema, items
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.known_fields import read_fields
from ballast.wire.openai.chat_tools import MAX_TOOLS
from ballast.wire.openai.message_fields import FUNCTION_FIELDS
from ballast.wire.openai.request import MAX_SALT_CHARS, MAX_STOP_CHARS, MAX_STOP_STRINGS, ChatCompletionRequest
from ballast.wire.parsing import (
    WHOLE,
    Objects,
    StrictModel,
    Strings,
    check_lengths,
    parse_json,
    refuse,
    validated,
)
from ballast.wire.tool_results import replace_media

_THINKING = {"enabled": True, "disabled": False, "adaptive": None}
_SHOWN = ("summarized", "updates")
"""Values of `thinking.display` that show reasoning. It is always sent in full."""
_BILLING = "x-anthropic-billing-header:"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


_MESSAGE_ITEMS = items("role", "content", role={"enum": ["user", "assistant", "system"]})
_SYSTEM_ITEMS = items("type", type={"enum": ["text", *TYPES]})
_STOP_ITEMS = MoreSchema({"items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}})
_TOOL_ITEMS = items(
    "name",
    name=FUNCTION_FIELDS["name"],
    description=FUNCTION_FIELDS["description"],
    input_schema=FUNCTION_FIELDS["parameters"],
)


def _typed(fields: Shape, *types: str) -> MoreSchema:
    """The schema of an object with a `type`. An object without any known field counts as missing."""
    has_type = {"required": ["type"], "properties": {"type": {"enum": types}}}
    is_empty = {"not": {"anyOf": [{"required": [name]} for name in fields.known]}}
    return MoreSchema({"anyOf": [has_type, is_empty]})


class OutputFormat(StrictModel):
    """The JSON schema of the text."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(StrictModel):
    """The requested form of the reply."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessagesRequest(StrictModel):
    """Body of POST /v1/messages and of its count_tokens. Blocks are checked where they are read."""

    other_fields = MESSAGES_RULES

    model: str
    messages: Annotated[Annotated[Objects, Field(min_length=1)], Holds(MESSAGE), _MESSAGE_ITEMS]
    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    system: Annotated[str | Annotated[Objects, _SYSTEM_ITEMS] | None, Holds(BLOCK)] = None
    stop_sequences: Annotated[Strings, Field(max_length=MAX_STOP_STRINGS), _STOP_ITEMS] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0), WHOLE] | None = None
    tools: Annotated[Annotated[Objects, Field(max_length=MAX_TOOLS), _TOOL_ITEMS] | None, Holds(TOOL)] = None
    tool_choice: Annotated[
        Annotated[dict[str, Any], _typed(TOOL_CHOICE, *_CHOICES, "tool")] | None, Holds(TOOL_CHOICE)
    ] = None
    thinking: Annotated[Annotated[dict[str, Any], _typed(THINKING, *_THINKING)] | None, Holds(THINKING)] = None
    """Reasoning ends after `budget_tokens`; `max_tokens` bounds reasoning and answer together. `display: omitted`
    leaves it out of the reply; with other values it is sent in full."""
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The deprecated name of output_config.format."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    """As in chat completions."""

    @property
    def error_names(self) -> Mapping[str, str]:
        """This API's names of the chat request's fields."""
        if self.output_format is None:
            return MESSAGES_FIELDS
        return MESSAGES_FIELDS | {r"response_format(\.json_schema)?": "output_format"}


def parse_messages(data: bytes, max_model_tokens: int, ignored: IgnoredFields) -> MessagesRequest:
    """Parse a body, and note unknown fields in `ignored`. Raises RequestError. Must not run on the event loop."""
    value = parse_json(data)
    check_lengths(value, max_model_tokens)
    for path, block in _blocks_given(value.get("messages")):
        if block.get("type") == "tool_result":
            replace_media(block.get("content"), ("text",), is_text_document, f"{path}.content", ignored)
    note_citations(_blocks_given(value.get("messages")), ignored)
    return read_fields(MessagesRequest, value, ignored)


def _blocks_given(messages: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The unchecked blocks of messages, each with its path."""
    for n, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for m, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict):
                yield f"messages.{n}.content.{m}", block


def to_chat(body: MessagesRequest, ignored: IgnoredFields) -> ChatCompletionRequest:
    """The same request in OpenAI's form. Tools and blocks of tools that run on a server are left out and noted in
    `ignored`. Raises RequestError for anything that OpenAI's form cannot express."""
    messages = [*_system(body), *_messages(body.messages, ignored)]
    if "tool_calls" in messages[-1]:
        refuse(f"messages.{len(body.messages) - 1}.content", "a message with tool calls cannot be continued")
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "tools": _tools(body.tools or (), ignored),
        "thinking": _thinking(body.thinking or {"type": "adaptive"}),
        "thinking_token_budget": _budget(body.thinking or {}),
        "cache_salt": body.cache_salt,
        "include_reasoning": _shows_reasoning(body.thinking or {}, ignored),
        "continue_final_message": messages[-1]["role"] == "assistant",
        **_tool_choice(body.tool_choice or {"type": "auto"}),
        **_output(body.output_config or OutputConfig(), body.output_format),
    }
    return validated(ChatCompletionRequest, {name: value for name, value in fields.items() if value is not None})


def _system(body: MessagesRequest) -> list[dict[str, Any]]:
    text = "\n".join(
        _block_text(block, at) for at, block in _blocks(body.system or "", "system") if not _is_billing(block)
    )
    return [{"role": "system", "content": text}] if text else []


def _is_billing(block: Mapping[str, Any]) -> bool:
    """Whether it is the block that Claude Code prepends for Anthropic's billing. It differs in every request, so the
    prefix cache could not reuse anything after it."""
    text = block.get("text")
    return isinstance(text, str) and text.startswith(_BILLING) and "\n" not in text.strip()


def _messages(messages: Sequence[Mapping[str, Any]], ignored: IgnoredFields) -> Iterator[dict[str, Any]]:
    for n, message in enumerate(messages):
        path, content = f"messages.{n}", message.get("content")
        match message.get("role"):
            case "user":
                yield from _user(content, f"{path}.content")
            case "assistant":
                yield _assistant(content, f"{path}.content", ignored)
            case "system":
                yield {"role": "system", "content": _text(content, f"{path}.content")}
            case role:
                refuse(f"{path}.role", f"is {role!r}; it must be user, assistant or system")


def _user(content: Any, path: str) -> Iterator[dict[str, Any]]:
    """Tool results, each as a separate message, and the user's texts between them."""
    texts: list[Mapping[str, Any]] = []
    if content == []:
        refuse(path, "must not be empty; send at least one block")
    for at, block in _blocks(content, path):
        if block.get("type") != "tool_result":
            texts.append({"type": "text", "text": _block_text(block, at)})
            continue
        if texts:
            yield {"role": "user", "content": texts}
            texts = []
        result = _text(block.get("content") or "", f"{at}.content")
        text = f"Error: {result}" if block.get("is_error") else result
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
    if texts:
        yield {"role": "user", "content": texts}


def _assistant(content: Any, path: str, ignored: IgnoredFields) -> dict[str, Any]:
    texts, reasoning, calls = [], "", []
    for at, block in _blocks(content, path):
        match block.get("type"):
            case "thinking":
                reasoning += str(block.get("thinking", ""))
            case "redacted_thinking":
                pass  # encrypted: only Anthropic can decrypt it
            case "tool_use":
                if not isinstance(block.get("name"), str):
                    refuse(f"{at}.name", "must be a string")
                arguments = orjson.dumps(block.get("input") or {}).decode()
                function = {"name": block.get("name"), "arguments": arguments}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "compaction" if isinstance(summary := block.get("content"), str):
                texts.append(summary)  # replaces all earlier messages
            case "server_tool_use" | "mcp_tool_use" | "mcp_tool_result" | "container_upload" | "compaction":
                skip(block["type"], at, ignored)
            case kind if isinstance(kind, str) and kind.endswith("_tool_result"):
                skip(kind, at, ignored)
            case _:
                texts.append(_block_text(block, at))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _blocks(content: Any, path: str) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(content, str):
        return [(path, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        refuse(path, "must be a string or a list of blocks")
    return [(f"{path}.{n}", block) for n, block in enumerate(content)]


def _text(content: Any, path: str) -> str:
    """The text of a string or of text blocks, with one line per block."""
    return "\n".join(_block_text(block, at) for at, block in _blocks(content, path))


def _block_text(block: Mapping[str, Any], path: str) -> str:
    if block.get("type") in TYPES:
        return document_text(block, path)
    text = block.get("text")
    if block.get("type") == "text" and not isinstance(text, str):
        refuse(f"{path}.text", "must be a string")
    if block.get("type") != "text" or not isinstance(text, str):
        refuse(path, f"this model reads only text blocks here, not {block.get('type')!r}; leave the block out")
    return text


def _tools(tools: Sequence[Mapping[str, Any]], ignored: IgnoredFields) -> list[dict[str, Any]]:
    functions = []
    for n, tool in enumerate(tools):
        if tool.get("type") in (None, "custom", "function"):
            function: dict[str, Any] | None = {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
                "strict": tool.get("strict"),
            }
        else:
            function = anthropic_function(tool)
        if function is None:
            skip(tool["type"], f"tools.{n}", ignored)
        else:
            functions.append({"type": "function", "function": function})
    return functions


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    fields: dict[str, Any] = {}
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    else:
        refuse("tool_choice.type", f"is {kind!r}; it must be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields


def _thinking(thinking: Mapping[str, Any]) -> bool | None:
    kind = thinking.get("type")
    if not isinstance(kind, str) or kind not in _THINKING:
        refuse("thinking.type", f"is {kind!r}; it must be {', '.join(_THINKING)}")
    return _THINKING[kind]


def _budget(thinking: Mapping[str, Any]) -> int | None:
    budget = thinking.get("budget_tokens")
    if budget is not None and (type(budget) is not int or budget < 0):
        refuse("thinking.budget_tokens", "must be a whole number, 0 or more")
    return budget if thinking.get("type") == "enabled" else None


def _shows_reasoning(thinking: Mapping[str, Any], ignored: IgnoredFields) -> bool | None:
    display = thinking.get("display")
    if display not in (None, *_SHOWN, "omitted"):
        ignored.unknown("thinking.display", f"is {display!r}; it must be omitted or one of {', '.join(_SHOWN)}")
    return False if display == "omitted" else None


def _output(config: OutputConfig, older: OutputFormat | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"reasoning_effort": config.effort}
    if older is not None and config.format not in (None, older):
        refuse("output_format", "differs from output_config.format, which has the same meaning; send one of them")
    form = older or config.format
    if form is not None:
        schema = {"name": "output", "schema": form.schema_, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
