"""Brings normalised messages into the form that templates with channels expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Level of the API → level that the model knows."""


def for_channels(chat: Sequence[Mapping[str, Any]], *, takes_both: bool) -> list[dict[str, Any]]:
    """The messages with the leading system texts in one message, reasoning in `thinking`, and one call per message with
    its results right after it. Without `takes_both`, text next to calls becomes a part of their reasoning, because the
    published template accepts only one of both."""
    num_leading = next((n for n, message in enumerate(chat) if message["role"] != "system"), len(chat))
    texts = [message["content"] for message in chat[:num_leading] if message["content"]]
    head = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    rest = [_with_thinking(message, takes_both=takes_both) for message in chat[num_leading:]]
    return [*head, *_single_calls(rest)]


def known_effort(options: Mapping[str, Any]) -> dict[str, Any]:
    """A template's variables with a level of reasoning that the model knows."""
    effort = options.get("reasoning_effort")
    if not isinstance(effort, str):
        return dict(options)
    return {**options, "reasoning_effort": _LEVELS.get(effort, effort)}


def described(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools, with an empty description for each function and parameter without one, on which some published
    templates fail. A parameter that may be anything is an object as well."""
    return [{**tool, "function": _described_function(tool["function"])} for tool in tools]


def _described_function(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if isinstance(parameters, Mapping) and isinstance(properties, Mapping):
        known = {
            name: {"description": "", **(schema if isinstance(schema, Mapping) else {})}
            for name, schema in properties.items()
        }
        function = {**function, "parameters": {**parameters, "properties": known}}
    return {"description": "", **function}


def _with_thinking(message: Mapping[str, Any], *, takes_both: bool) -> dict[str, Any]:
    out = dict(message)
    thinking = out.pop("reasoning_content", None) or out.pop("thinking", None)
    out.pop("thinking", None)
    if message["role"] != "assistant" or not isinstance(thinking, str):
        return out
    if out.get("tool_calls") and out["content"] and not takes_both:
        return {**out, "thinking": f"{thinking}\n\n{out['content']}", "content": ""}
    return {**out, "thinking": thinking}


def _single_calls(chat: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    end = 0
    for at, message in enumerate(chat):
        if at < end:
            continue
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        end = next((n for n in range(at + 1, len(chat)) if chat[n]["role"] != "tool"), len(chat))
        numbers = {call["id"]: n for n, call in enumerate(calls) if isinstance(call.get("id"), str)}
        results = chat[at + 1 : end]
        owners = [_owner(result, n, numbers, len(calls)) for n, result in enumerate(results)]
        for n, call in enumerate(calls):
            head = message if n == 0 else {"role": "assistant", "content": ""}
            yield {**head, "tool_calls": [call]}
            yield from (result for result, owner in zip(results, owners, strict=True) if owner == n)


def _owner(result: Mapping[str, Any], position: int, numbers: Mapping[str, int], num_calls: int) -> int:
    """The number of the call that gave the result: by its id, otherwise by its position."""
    given = result.get("tool_call_id")
    by_position = min(position, num_calls - 1)
    return numbers.get(given, by_position) if isinstance(given, str) else by_position
