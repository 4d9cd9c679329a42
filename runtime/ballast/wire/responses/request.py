"""Requests of OpenAI's Responses API, as far as a server without storage can support them. Each is translated to a chat
request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model

from ballast.errors import RequestError
from ballast.wire.client_tools import CalledTool, custom_arguments, custom_function, skip
from ballast.wire.field_rules import Holds, NoEffect
from ballast.wire.field_schemas import MoreSchema, inlined
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.known_fields import read_fields
from ballast.wire.openai.chat_tools import MAX_TOOLS
from ballast.wire.openai.request import MAX_TOP_LOGPROBS, REQUEST_ID, SAMPLING_FIELDS, ChatCompletionRequest
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
from ballast.wire.responses.other_fields import (
    FILE_PART,
    ITEM,
    RESPONSES_RULES,
    SKIPPED_ITEMS,
    TEXT_FORMAT,
    TEXT_PARTS,
    TOOL,
    TOOL_CHOICE,
)
from ballast.wire.text_files import decoded_text, file_prompt
from ballast.wire.tool_results import replace_media

_ROLES = ("user", "assistant", "system", "developer")
_CALLED_TOOLS = ("function", "custom")
"""Types of tools that the model can call."""
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = frozenset(
    {
        _LOGPROBS,
        *("reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results"),
        *("file_search_call.results", "code_interpreter_call.outputs", "computer_call_output.output.image_url"),
        "message.input_image.image_url",
    }
)
"""Accepted values of `include`. Except for log probabilities, they request data that does not exist here: reasoning is
not encrypted, and there is no search."""
_CHAT_FIELDS = (
    *(name for name in SAMPLING_FIELDS if name not in ("max_tokens", "temperature", "top_p")),
    *("stop", "ignore_eos", "priority", "structured_outputs", "skip_special_tokens", "include_stop_str_in_output"),
    *("chat_template_kwargs", "thinking_token_budget", "cache_salt", "extra_key"),
)
"""Fields that vLLM and the Open Responses specification add to this API. They are handled as in a chat."""
_Body = TypeVar("_Body", bound=StrictModel)


def _with_chats_fields(kind: type[_Body]) -> type[_Body]:
    """The body with the fields of `_CHAT_FIELDS`. A chat's body checks them."""
    chats = ChatCompletionRequest.model_fields
    more: dict[str, Any] = {
        name: (
            Annotated[Any, inlined(ChatCompletionRequest, name)],
            Field(None, description=chats[name].description),
        )
        for name in _CHAT_FIELDS
    }
    return create_model(kind.__name__, __base__=kind, __doc__=kind.__doc__, __module__=kind.__module__, **more)


_INPUT_ITEMS = MoreSchema(
    {
        "items": {
            "type": "object",
            "anyOf": [
                {"required": ["role", "content"], "properties": {"role": {"enum": list(_ROLES)}}},
                {"required": ["type"], "properties": {"type": {"type": "string", "not": {"const": "message"}}}},
            ],
        }
    }
)
_CHOICE_TYPES = MoreSchema({"required": ["type"], "properties": {"type": {"enum": [*_CALLED_TOOLS, "allowed_tools"]}}})


class TextOptions(StrictModel):
    """The field `text`: the form of the answer."""

    format: Annotated[dict[str, Any] | None, Holds(TEXT_FORMAT)] = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, NoEffect("a hint that this model was not trained to follow")
    ] = None


class ReasoningOptions(StrictModel):
    """`reasoning`."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Annotated[
        Literal["auto", "concise", "detailed"] | None, NoEffect("reasoning is sent in full, never as a summary")
    ] = None
    generate_summary: Annotated[Any, NoEffect("deprecated by OpenAI; use summary")] = None


def _input(value: Any) -> Any:
    if value == []:
        raise ValueError("must not be empty; send a string or at least one item")
    if isinstance(value, (str, list)):
        return value
    raise ValueError("must be a string or a list of items")


@_with_chats_fields
class ResponsesRequest(StrictModel):
    """Body of POST /v1/responses. Items are checked where they are read."""

    other_fields = RESPONSES_RULES

    model: str | None = None
    input: Annotated[str | Annotated[Objects, Field(min_length=1), _INPUT_ITEMS], BeforeValidator(_input), Holds(ITEM)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stream: bool | None = None
    tools: Annotated[Annotated[Objects, Field(max_length=MAX_TOOLS)] | None, Holds(TOOL)] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | Annotated[dict[str, Any], _CHOICE_TYPES] | None, Holds(TOOL_CHOICE)
    ] = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[Strings, MoreSchema({"items": {"enum": sorted(_INCLUDED)}})] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """auto: the beginning of an input that is too long is dropped, as in vLLM."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    """Number of alternatives per token, if `include` requests log probabilities."""
    metadata: Any = None
    """Repeated in the response."""
    user: Any = None
    """Repeated in the response."""

    request_id: Annotated[str, Field(pattern=REQUEST_ID)] | None = None
    """The response's id ends with this text."""

    @property
    def shows_logprobs(self) -> bool:
        """Whether the response contains log probabilities."""
        return _LOGPROBS in (self.include or ())


def parse_responses(data: bytes, max_model_tokens: int, ignored: IgnoredFields) -> ResponsesRequest:
    """Parse a body, and note unknown fields in `ignored`. Raises RequestError. Must not run on the event loop."""
    value = parse_json(data)
    check_lengths(value, max_model_tokens)
    items = value.get("input")
    for n, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            replace_media(item.get("output"), TEXT_PARTS, _is_text_file, f"input.{n}.output", ignored)
    body = read_fields(ResponsesRequest, value, ignored)
    for n, name in enumerate(body.include or ()):
        if name not in _INCLUDED:
            refuse(f"include.{n}", f"{name!r} is not available here; leave it out")
    return body


def to_chat(body: ResponsesRequest, ignored: IgnoredFields) -> tuple[ChatCompletionRequest, Mapping[str, CalledTool]]:
    """The same request as a chat request, and the client's names of tools that were renamed. Tools that run on a server
    are left out and noted in `ignored`. Raises RequestError for anything that a chat request cannot express."""
    tools, called = _tools(body, ignored)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body, ignored),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "tools": tools,
        "tool_choice": _tool_choice(body.tool_choice, ignored),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body.text),
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "truncate_prompt_tokens": -1 if body.truncation == "auto" else None,
        **({"logprobs": True, "top_logprobs": body.top_logprobs} if body.shows_logprobs else {}),
        "request_id": body.request_id,
        **{name: getattr(body, name) for name in _CHAT_FIELDS},
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return validated(ChatCompletionRequest, given), called


def _messages(body: ResponsesRequest, ignored: IgnoredFields) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for n, item in enumerate(body.input):
        kind = item.get("type")
        if isinstance(kind, str) and kind in SKIPPED_ITEMS:
            skip(kind, f"input.{n}", ignored)
        else:
            _add_item(messages, item, f"input.{n}")
    return messages


def _add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], path: str) -> None:
    """Add an item: as a new message, or to the assistant's current turn."""
    match item.get("type", "message"):
        case "message":
            text = _text(item.get("content"), f"{path}.content")
            if item.get("role") == "user" and item.get("content") == []:
                refuse(f"{path}.content", "must not be empty; send at least one part")
            if item.get("role") not in _ROLES:
                refuse(f"{path}.role", f"is {item.get('role')!r}; it must be one of {', '.join(_ROLES)}")
            if item.get("role") == "assistant":
                _turn(messages)["content"] += text
            else:
                messages.append({"role": item.get("role"), "content": text})
        case "reasoning":
            reasoning = _text(item.get("content") or (), f"{path}.content", separator="")
            turn = _turn(messages)
            turn["reasoning_content"] = turn.get("reasoning_content", "") + reasoning
        case "function_call":
            if not isinstance(item.get("name"), str):
                refuse(f"{path}.name", "must be a string")
            _add_call(messages, item, item.get("arguments"))
        case "custom_tool_call":
            if not isinstance(item.get("name"), str):
                refuse(f"{path}.name", "must be a string")
            _add_call(messages, item, custom_arguments(item.get("input")))
        case "additional_tools":
            pass  # they are among the request's tools
        case "function_call_output" | "custom_tool_call_output":
            text = _text(item.get("output"), f"{path}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        case "item_reference":
            refuse(f"{path}.type", "this server does not store items; send the item itself")
        case kind:
            refuse(f"{path}.type", f"{kind!r} is not supported; send messages, reasoning, function calls and outputs")


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], arguments: Any) -> None:
    function = {"name": _joined(item.get("namespace"), item["name"]), "arguments": arguments}
    calls = _turn(messages).setdefault("tool_calls", [])
    calls.append({"id": item.get("call_id"), "type": "function", "function": function})


def _joined(namespace: Any, name: Any) -> Any:
    """The name under which the model sees a tool of a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and isinstance(name, str) else name


def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's current turn; a new one if the last message is not the assistant's."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(content: Any, path: str, *, separator: str = "\n") -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        refuse(path, "must be a string or a list of parts")
    texts = []
    for n, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == FILE_PART:
            texts.append(_file_text(part, f"{path}.{n}"))
            continue
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in TEXT_PARTS or not isinstance(text, str):
            refuse(f"{path}.{n}", f"this model reads only text, not {kind!r}; leave the part out")
        texts.append(text)
    return separator.join(texts)


def _file_text(part: Mapping[str, Any], path: str) -> str:
    return file_prompt(part.get("filename"), decoded_text(part.get("file_data"), f"{path}.file_data"))


def _is_text_file(part: Mapping[str, Any]) -> bool:
    try:
        return part.get("type") == FILE_PART and bool(_file_text(part, ""))
    except RequestError:
        return False


def _tools(body: ResponsesRequest, ignored: IgnoredFields) -> tuple[list[dict[str, Any]], dict[str, CalledTool]]:
    """The tools as functions, and the client's names of tools that were renamed."""
    functions: list[dict[str, Any]] = []
    called: dict[str, CalledTool] = {}
    for path, namespace, tool in _all_tools(body):
        kind = tool.get("type")
        if kind not in _CALLED_TOOLS:
            skip(kind, path, ignored)
            continue
        name = _joined(namespace, tool.get("name"))
        if kind == "custom":
            function = custom_function(name, tool.get("description"), tool.get("format"))
        else:
            function = {key: value for key, value in tool.items() if key not in ("type", "format")} | {"name": name}
        functions.append({"type": "function", "function": function})
        if (kind == "custom" or namespace is not None) and isinstance(name, str):
            called[name] = CalledTool(str(tool["name"]), namespace, is_custom=kind == "custom")
    return functions, called


def _all_tools(body: ResponsesRequest) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
    """Each tool with its path and its namespace: the request's tools, and those added by the conversation."""
    brought = () if isinstance(body.input, str) else body.input
    lists = [("tools", body.tools or ())]
    lists += [
        (f"input.{n}.tools", item["tools"])
        for n, item in enumerate(brought)
        if item.get("type") == "additional_tools" and isinstance(item.get("tools"), list)
    ]
    for at, tools in lists:
        for n, tool in enumerate(tools):
            inner = tool.get("tools") if isinstance(tool, dict) else None
            if not isinstance(tool, dict):
                refuse(f"{at}.{n}", "must be an object")
            elif tool.get("type") == "namespace" and isinstance(inner, list):
                space = tool.get("name")
                for m, each in enumerate(inner):
                    if not isinstance(each, dict):
                        refuse(f"{at}.{n}.tools.{m}", "must be an object")
                    yield f"{at}.{n}.tools.{m}", space if isinstance(space, str) else None, each
            else:
                yield f"{at}.{n}", None, tool


def _tool_choice(choice: str | Mapping[str, Any] | None, ignored: IgnoredFields) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") in _CALLED_TOOLS:
        return _named(choice)
    if choice.get("type") != "allowed_tools":
        refuse(
            "tool_choice.type",
            f"is {choice.get('type')!r}; it must be function, custom or allowed_tools",
        )
    tools = choice.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        refuse("tool_choice.tools", "must be a list of objects")
    for n, tool in enumerate(tools):
        if tool.get("type") not in _CALLED_TOOLS:
            skip(tool.get("type"), f"tool_choice.tools.{n}", ignored)
    named = [_named(tool) for tool in tools if tool.get("type") in _CALLED_TOOLS]
    allowed = {"mode": choice.get("mode"), "tools": named}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _named(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": _joined(tool.get("namespace"), tool.get("name"))}}


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    form = dict(text.format or {}) if text else {}
    if form.get("type") != "json_schema":
        return form or None
    for name in ("schema", "name"):
        if form.get(name) is None:
            refuse(f"text.format.{name}", "this field is required")
    return {"type": form.pop("type"), "json_schema": form}
