"""Random conversations, reproducible from a seed, that cover every case a chat template must handle."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TEXTS = (
    *("Hello", "What is 2 < 3 & 4 > 1?", " leading and trailing ", "two\nlines", "\n\nbreaks around\n\n", "x" * 300),
    *(
        "Grüße, 世界! ünïcödé",
        "👩‍🚀🚀",
        "العربية עברית",
        "{{ not.a.template }} {% if x %}",
        '{"json": "text"}',
        "'quotes' \"\\\"",
    ),
    *("```python\nprint('x')\n```", "tab\tand\u00a0space", "# Tools", "/nothink", "A > B", "0"),
)
NAMES = ("get_weather", "search", "run-code", "f", "a_function_with_a_longer_name")
KEYS = ("city", "limit", "options", "ключ", "items")
DESCRIPTIONS = ("Gets the weather.", "Two\nlines.", "Ünïcode <b>&amp;</b>", '"quoted"')


@dataclass(frozen=True)
class Shapes:
    """Which kinds of conversations are generated for a template."""

    tools: bool = True
    """Whether the assistant calls tools."""
    declared: bool = True
    """Whether the called tools are listed."""
    reasoning: bool = True
    """Whether earlier assistant messages carry their reasoning in a separate field."""
    inline: bool = False
    """Whether the reasoning is inside the content instead, as clients without that field send it."""
    names: bool = False
    """Whether messages have a `name`."""
    switches: tuple[dict[str, Any], ...] = ({},)
    """Variables of the template; each conversation gets one set."""
    calls: tuple[int, int] = (1, 3)
    """Minimum and maximum number of calls in a message with calls."""
    rounds: int = 3
    """Maximum number of messages with calls in a turn."""
    calls_at_end_only: bool = False
    """Whether only the last turn has calls."""
    null_beside_calls: bool = False
    """Whether the content of a message with calls is null; otherwise it is a text that may be empty."""


@dataclass(frozen=True)
class Conversation:
    """In the form that Hugging Face's `apply_chat_template` takes; arguments of calls are objects."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    options: dict[str, Any]
    add_generation_prompt: bool

    def as_request(self) -> list[dict[str, Any]]:
        """The messages in the form of OpenAI's API: arguments are JSON text."""
        return [_as_request(message) for message in self.messages]


def conversations(count: int, shapes: Shapes, seed: int = 25) -> Iterator[Conversation]:
    """Generate `count` conversations. Call ids are `functions.NAME:N`, with N counted over the conversation."""
    for number in range(count):
        yield _conversation(random.Random(f"{seed} {number}"), shapes)


def _conversation(rng: random.Random, shapes: Shapes) -> Conversation:
    tools = [_tool(rng, name) for name in rng.sample(NAMES, rng.randint(1, 3))] if rng.random() < 0.6 else None
    tools = tools if shapes.tools else None
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(TEXTS)})
    num_calls = 0
    num_turns = rng.randint(1, 4)
    for turn in range(num_turns):
        messages.append(_message(rng, shapes, "user"))
        may_call = tools is not None and (turn == num_turns - 1 or not shapes.calls_at_end_only)
        for _ in range(rng.randint(0, shapes.rounds) if may_call else 0):
            calls = []
            for _ in range(rng.randint(*shapes.calls)):
                name = rng.choice(tools or [])["function"]["name"]
                arguments = {key: _value(rng, 2) for key in rng.sample(KEYS, rng.randint(0, 3))}
                call = {"id": f"functions.{name}:{num_calls}", "type": "function"}
                calls.append({**call, "function": {"name": name, "arguments": arguments}})
                num_calls += 1
            content = None if shapes.null_beside_calls else rng.choice(("", rng.choice(TEXTS)))
            message = {**_message(rng, shapes, "assistant"), "content": content, "tool_calls": calls}
            messages.append(_inlined(rng, message) if shapes.inline else message)
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": rng.choice(TEXTS)} for call in calls]
        if turn < num_turns - 1:
            message = _message(rng, shapes, "assistant")
            messages.append(_inlined(rng, message) if shapes.inline else message)
    declared = tools if shapes.declared else None
    return Conversation(messages, declared, rng.choice(shapes.switches), add_generation_prompt=rng.random() < 0.9)


def _message(rng: random.Random, shapes: Shapes, role: str) -> dict[str, Any]:
    message = {"role": role, "content": rng.choice(TEXTS)}
    if shapes.names and role == "user" and rng.random() < 0.2:
        message["name"] = rng.choice(("Ada", "Übung"))
    if role == "assistant" and shapes.reasoning and rng.random() < 0.6:
        message["reasoning_content"] = rng.choice(TEXTS).strip("\n")
    return message


def _inlined(rng: random.Random, message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning inside the content, in one of the forms that models write."""
    message = dict(message)
    reasoning = message.pop("reasoning_content", None)
    if reasoning is not None:
        opening = rng.choice(("<think>", "<think>\n", "", "First.<think>a</think>\n<think>"))
        end, gap = rng.choice(("", "\n")), rng.choice(("", "\n\n"))
        message["content"] = f"{opening}{reasoning}{end}</think>{gap}{message['content']}"
    return message


def _tool(rng: random.Random, name: str) -> dict[str, Any]:
    properties = {key: _schema(rng, 2) for key in rng.sample(KEYS, rng.randint(0, 4))}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if properties and rng.random() < 0.7:
        parameters["required"] = rng.sample(sorted(properties), rng.randint(1, len(properties)))
    return {
        "type": "function",
        "function": {"name": name, "description": rng.choice(DESCRIPTIONS), "parameters": parameters},
    }


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    described = {"description": rng.choice(DESCRIPTIONS)} if rng.random() < 0.5 else {}
    match rng.randrange(6 if depth else 4):
        case 0:
            return {"type": "string", **described}
        case 1:
            return {"type": "integer", "minimum": 0, **described}
        case 2:
            return {"type": "string", "enum": ["a", "b"], **described}
        case 3:
            return {"type": "boolean", "default": True, **described}
        case 4:
            return {"type": "array", "items": _schema(rng, depth - 1), **described}
        case _:
            return {"type": "object", "properties": {key: _schema(rng, depth - 1) for key in KEYS[:2]}, **described}


def _value(rng: random.Random, depth: int) -> Any:
    match rng.randrange(8 if depth else 6):
        case 0 | 1 | 2:
            return rng.choice(TEXTS)
        case 3:
            return rng.choice((0, 7, -1, 2.5, 10**12))
        case 4:
            return rng.choice((True, False))
        case 5:
            return None
        case 6:
            return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        case _:
            return {key: _value(rng, depth - 1) for key in rng.sample(KEYS, 2)}


def _as_request(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
