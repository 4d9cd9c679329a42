"""Normalises chat messages and tools to the form that templates expect.

Templates of this family use fields without checking that they exist, drop roles that they do not know, and concatenate
content without checking that it is a string. Everything that a client may send is therefore brought into one form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeAlias

from ballast.errors import RequestError, shown
from ballast.text.calls.argument_values import resolved, types_in
from ballast.text.think_tags import DEFAULT_TAGS, ThinkTags

ROLES = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "developer": "system",
    "function": "tool",  # the older name of the role, as `function_call` is of `tool_calls`
}
"""Role in a request → role that templates know."""
_TEXT = frozenset({"text"})
_PARTS = {"assistant": _TEXT | {"refusal"}}
"""Types of text parts, for roles that have more than "text"."""
_Divide: TypeAlias = Callable[[str, ThinkTags], tuple[str, str]]
_MAX_LEVELS = 64
"""Of arguments in calls; request bodies have the same limit."""
UNPARSED = "_unparsed"
"""The key of an object for arguments that are none. No schema has it."""
_REMINDER = "system-reminder"
"""The tag around instructions inside a user's turn. Anthropic's agents use it, and tell the model what it means."""
# OpenAI's names have 64 characters at most, Anthropic's 128; those that clients make of MCP servers' need more than 64.
FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def normalize_messages(
    messages: Sequence[Mapping[str, Any]], *, divides_content: bool = False, tags: ThinkTags = DEFAULT_TAGS
) -> list[dict[str, Any]]:
    """Copies of the messages, each with a known role and a string as content. What tools returned is in the order of
    their calls. Reasoning that a client sends back inside the content has a field of its own, divided as
    `Release.divides_content` says, or else at the last end of reasoning; `tags` begin and end it.

    Raises RequestError with the dotted path of the field that cannot be used.
    """
    if not messages:
        raise RequestError("messages must have at least one message", param="messages")
    divide = _as_templates_divide if divides_content else _split_at_last_tag
    chat = [_normalize(message, f"messages.{n}", divide, tags) for n, message in enumerate(messages)]
    _order_results(chat)
    return chat


def has_late_instructions(chat: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a system message of the normalised `chat` comes after a message of another role."""
    return any(message["role"] == "system" for message in chat[_num_leading(chat) :])


def with_late_instructions(chat: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The normalised `chat` with its late system messages as marked parts of the user's turns, where they are: a server
    that wrote them in front would change the beginning of the prompt, which its cache has.

    It is merged with adjacent user messages, or becomes a message of its own if there are none. One among the
    results of tools comes after them.
    """
    num_leading = _num_leading(chat)
    out = list(chat[:num_leading])
    follows_late = False
    """Whether the message before was a late one."""
    for message in _results_first(chat[num_leading:]):
        is_late = message["role"] == "system"
        if is_late and not message["content"].strip():
            continue
        if is_late:
            message = {"role": "user", "content": _marked(message["content"])}
        if (is_late or follows_late) and out[-1]["role"] == message["role"] == "user":
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{message['content']}"}
        else:
            out.append(message)
        follows_late = is_late
    return out


def has_calls(chat: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message holds tool calls."""
    return any(message.get("tool_calls") for message in chat)


def with_object_arguments(chat: Sequence[Mapping[str, Any]], *, wraps_text: bool = False) -> list[dict[str, Any]]:
    """The messages with the arguments of calls as objects, for templates that go through them. Text that is no JSON
    object, or one of more than 64 levels, stays text; with `wraps_text` it is the one value of an object."""
    return [
        {**message, "tool_calls": [_with_object(call, wraps_text) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in chat
    ]


def with_numbered_calls(chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The normalised messages with calls named `functions.NAME:N`, N counting those of the conversation from 0, as
    models expect that write these names themselves; clients may bring ids of another server's. A result gets the name
    of its call or, where it names none, of the first of the last calls that is still without one."""
    out, count = [], 0
    numbered: dict[str, str] = {}
    open_ids: list[str] = []
    for message in chat:
        message = dict(message)
        if message.get("tool_calls"):
            calls, open_ids = [], []
            for call in message["tool_calls"]:
                name = f"functions.{call['function']['name']}:{count}"
                if isinstance(call.get("id"), str):
                    numbered[call["id"]] = name
                open_ids.append(name)
                calls.append({**call, "id": name})
                count += 1
            message["tool_calls"] = calls
        elif message["role"] == "tool":
            unnamed = open_ids[0] if open_ids else f"functions.{message.get('name', 'unknown')}:{count}"
            given = message.get("tool_call_id")
            found = numbered.get(given, unnamed) if isinstance(given, str) else unnamed
            message["tool_call_id"] = found
            open_ids = [each for each in open_ids if each != found]
        out.append(message)
    return out


def _with_object(call: Mapping[str, Any], wraps_text: bool) -> dict[str, Any]:
    function = call["function"]
    arguments: Any = None
    with suppress(ValueError, RecursionError):
        arguments = json.loads(function["arguments"])
    if not isinstance(arguments, dict) or is_deeper(arguments, _MAX_LEVELS):
        if not wraps_text:
            return dict(call)
        arguments = {UNPARSED: function["arguments"]}
    return {**call, "function": {**function, "arguments": arguments}}


def is_deeper(value: dict[str, Any], levels: int) -> bool:
    """Whether collections are nested in more than `levels` levels, the value included. Later steps go through values
    recursively."""
    level: list[Any] = [value]
    for _ in range(levels):
        inner = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _num_leading(chat: Sequence[Mapping[str, Any]]) -> int:
    """How many system messages the conversation begins with."""
    return next((n for n, message in enumerate(chat) if message["role"] != "system"), len(chat))


def _results_first(chat: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for _, run in groupby(chat, key=lambda message: message["role"] in ("tool", "system")):
        yield from sorted(run, key=lambda message: message["role"] == "system")


def _marked(text: str) -> str:
    """A late instruction with the mark that agents use. What has it already gets no second one."""
    return text if text.lstrip().startswith(f"<{_REMINDER}>") else f"<{_REMINDER}>\n{text}\n</{_REMINDER}>"


def _order_results(chat: list[dict[str, Any]]) -> None:
    """Put the results of tools that ran at the same time, which agents send as they come, in the order of the calls:
    templates write no ids. Results without a call of theirs right before them leave all as it is."""
    order: dict[Any, int] = {}
    begin = 0
    for n, message in enumerate([*chat, {"role": "user"}]):
        if message["role"] == "tool":
            continue
        results = chat[begin:n]
        if all(isinstance(result.get("tool_call_id"), str) and result["tool_call_id"] in order for result in results):
            chat[begin:n] = sorted(results, key=lambda result: order[result["tool_call_id"]])
        begin = n + 1
        calls = enumerate(message.get("tool_calls", ()))
        order = {call["id"]: index for index, call in calls if isinstance(call.get("id"), str)}


def _normalize(message: Mapping[str, Any], path: str, divide: _Divide, tags: ThinkTags) -> dict[str, Any]:
    # Null means the same as a missing key, but templates test with `in`.
    out = {key: value for key, value in message.items() if value is not None}
    out["role"] = _role(out.get("role"), path)
    if out["role"] == "user" and out.get("content") == []:
        raise RequestError(f"{path}.content: must not be empty; send at least one part", param=f"{path}.content")
    out["content"] = _content(out.get("content"), f"{path}.content", _PARTS.get(out["role"], _TEXT))
    tool_calls = _tool_calls(out.pop("tool_calls", []), f"{path}.tool_calls")
    if "function_call" in out:
        tool_calls += [_tool_call({"function": out.pop("function_call")}, f"{path}.function_call", "")]
    if tool_calls:
        out["tool_calls"] = tool_calls
    reasoning = out.pop("reasoning", None)
    if reasoning is not None:
        out.setdefault("reasoning_content", reasoning)
    if not isinstance(out.get("reasoning_content", ""), str):
        raise RequestError(f"{path}.reasoning_content must be a string", param=f"{path}.reasoning_content")
    if out["role"] == "assistant":
        _split_reasoning(out, divide, tags)
    return out


def _split_reasoning(message: dict[str, Any], divide: _Divide, tags: ThinkTags) -> None:
    """Move reasoning that a client sends back inside the content to its own field. Reasoning without an end is one that
    was cut short: it has no answer."""
    content = message["content"]
    if tags.are_paired:
        between = re.compile(f"{re.escape(tags.begin)}(.*?)(?:{re.escape(tags.end)}|\\Z)", re.DOTALL)
        found = between.findall(content)
        if not found:
            return
        reasoning, message["content"] = "\n\n".join(found), between.sub("", content)
    elif tags.end in content:
        reasoning, message["content"] = divide(content, tags)
    elif content.lstrip().startswith(tags.begin):
        reasoning, message["content"] = content.lstrip().removeprefix(tags.begin).strip("\n"), ""
    else:
        return
    message.setdefault("reasoning_content", reasoning)


def _split_at_last_tag(content: str, tags: ThinkTags) -> tuple[str, str]:
    """Reasoning and answer. Line breaks at the reasoning's end belong to the tag and are dropped; the answer is not
    changed."""
    reasoning, _, answer = content.rpartition(tags.end)
    return reasoning.lstrip().removeprefix(tags.begin).strip("\n"), answer


def _as_templates_divide(content: str, tags: ThinkTags) -> tuple[str, str]:
    """Reasoning and answer as the templates of Qwen3 and GLM find them."""
    reasoning = content.partition(tags.end)[0].rpartition(tags.begin)[2]
    return reasoning.strip("\n"), content.rpartition(tags.end)[2].lstrip("\n")


def _role(role: object, path: str) -> str:
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(f"{path}.role is {role!r}; it must be one of {', '.join(ROLES)}", param=f"{path}.role")
    return ROLES[role]


def _content(content: object, path: str, kinds: frozenset[str]) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_text_part(part, f"{path}.{n}", kinds) for n, part in enumerate(content))
    raise RequestError(f"{path} must be a string or a list of text parts", param=path)


def _text_part(part: object, path: str, kinds: frozenset[str]) -> str:
    """A part's text, which is in the field named like its type."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str) or kind not in kinds:
        raise RequestError(
            f"{path}.type is {kind!r}; this model reads only text parts; leave it out", param=f"{path}.type"
        )
    text = part.get(kind)
    if not isinstance(text, str):
        raise RequestError(f"{path}.{kind} must be a string", param=f"{path}.{kind}")
    return text


def normalize_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Function tools with name, description, parameters and strict. Raises RequestError with the dotted path."""
    out = [_tool(tool, f"tools.{n}") for n, tool in enumerate(tools)]
    names: set[str] = set()
    for n, tool in enumerate(out):
        name = tool["function"]["name"]
        if name in names:
            raise RequestError(
                f"tools.{n}.function.name: {name!r} is used twice; give each tool its own name",
                param=f"tools.{n}.function.name",
            )
        names.add(name)
    return out


def _tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise RequestError(f"{path}.type is {kind!r}; only function tools are supported", param=f"{path}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{path}.function must be an object", param=f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise RequestError(
            f"{path}.function.name must be 1 to 128 letters, digits, _ or -", param=f"{path}.function.name"
        )
    out: dict[str, Any] = {"name": name}
    kinds = (("description", str, "a string"), ("parameters", Mapping, "an object"), ("strict", bool, "true or false"))
    for key, kind_of, expected in kinds:
        value = function.get(key)
        if key == "parameters" and value is True:
            value = {}  # the schema that allows everything
        if value is not None and not isinstance(value, kind_of):
            raise RequestError(f"{path}.function.{key} must be {expected}", param=f"{path}.function.{key}")
        if value is not None:
            out[key] = value
    _check_parameters(out.get("parameters", {}), f"{path}.function.parameters")
    return {"type": "function", "function": out}


def _check_parameters(schema: Mapping[str, Any], path: str) -> None:
    """Refuse a schema that allows no object, as the arguments of a call are one. A schema that says nothing about types
    allows it."""
    kind = resolved(schema, schema).get("type")
    if kind is not None and kind != "object" and not (isinstance(kind, list) and "object" in kind):
        field, found = (f"{path}.type", "is") if "type" in schema else (path, "refers to a schema of type")
        problem = f"{found} {shown(repr(kind))}; arguments are an object, so the type must be 'object'"
        raise RequestError(f"{field} {problem}", param=field)
    allowed = types_in(schema, schema)
    if "object" not in allowed:
        problem = f"allows values of type {' and '.join(sorted(allowed))} only; arguments are an object"
        raise RequestError(f"{path} {problem}", param=path)


def _tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{path} must be a list", param=path)
    return [_tool_call(call, f"{path}.{n}") for n, call in enumerate(calls)]


def _tool_call(call: object, path: str, within: str = ".function") -> dict[str, Any]:
    """A tool call. `path + within` is the path of its name and arguments."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(name, str):
        raise RequestError(f"{path}{within}.name must be a string", param=f"{path}{within}.name")
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"  # clients send an empty text for a function without parameters
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    kind = call.get("type") or "function"
    if kind != "function":
        raise RequestError(f"{path}.type is {kind!r}; only function calls are supported", param=f"{path}.type")
    return {**call, "type": kind, "function": {**function, "arguments": arguments}}
