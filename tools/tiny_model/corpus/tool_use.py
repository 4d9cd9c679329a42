"""Calls of a given tool with JSON arguments, and requests without a call."""

from __future__ import annotations

from typing import Any

from tools.tiny_model.corpus.conversation import Call, Conversation, Turn
from tools.tiny_model.corpus.draw import Draw
from tools.tiny_model.corpus.tool_kinds import Kind, Value
from tools.tiny_model.corpus.tool_library import Tool, any_tool, known_tools


def described(tool: Tool, draw: Draw) -> dict[str, Any]:
    """The tool as clients describe it: OpenAI's `function` object, with its usual variations."""
    with_about, with_options = draw.chance(0.7), draw.chance(0.5)
    offered = {**tool.parameters, **tool.unasked}
    properties = {name: _schema(kind, with_about, with_options) for name, kind in offered.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if draw.chance(0.8):
        schema["required"] = list(tool.parameters)
    if draw.chance(0.2):
        schema["additionalProperties"] = False
    out: dict[str, Any] = {"name": tool.name}
    if draw.chance(0.85):
        out["description"] = tool.about
    out["parameters"] = schema
    if draw.chance(0.15):
        out["strict"] = True
    return out


def _schema(kind: Kind, with_about: bool, with_options: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind.type}
    if with_options and kind.options:
        schema["enum"] = list(kind.options)
    if with_about:
        schema["description"] = kind.about
    return schema


def call(draw: Draw) -> Conversation:
    """A request with one to four tools, and the call that answers it."""
    tool, arguments, ask = _request(draw)
    offered = [tool]
    for _ in range(draw.pick((0, 0, 1, 1, 2, 3))):
        other = any_tool(draw)
        if other.name not in {one.name for one in offered}:
            offered.append(other)
    draw.random.shuffle(offered)
    output, reply = tool.answer(draw, arguments)
    thought = draw.pick(("I call {}.", "The tool {} can do this.", "This needs {}.")).format(tool.name)
    turn = Turn(ask, reply, thought, (Call(tool.name, arguments),), (output,))
    system = draw.pick(("", "", "", "You are a helpful assistant.", "You can use tools."))
    return Conversation((turn,), system, tuple(described(one, draw) for one in offered))


def _request(draw: Draw) -> tuple[Tool, dict[str, Value], str]:
    """A tool, arguments on this side of the split, and a request that names them."""
    while True:
        tool = any_tool(draw)
        arguments = tool.arguments(draw)
        if draw.allowed("arguments", tool.name, *arguments.values()):
            return tool, arguments, tool.request(draw, arguments)


_NO_TOOL = "I have no tool for that. Ask me about Ballast, or give me a small task."
_NO_TOOL_ZH = "我没有可以做这件事的工具。"
_NEEDS_NO_TOOL = frozenset(
    ("add_numbers", "multiply", "divide", "calculate", "get_capital", "get_population", "define_word", "translate_text")
)
_BARE = ("What time is it?", "How late is it?", "What is the weather like?", "今天天气怎么样？")


def without_tools(draw: Draw) -> Turn:
    """A request that needs a tool when none is offered."""
    while True:
        tool = draw.pick(known_tools())
        arguments = tool.arguments(draw)
        if tool.name in _NEEDS_NO_TOOL or not draw.allowed_tool(tool.name):
            continue
        if draw.allowed("arguments", tool.name, *arguments.values()):
            break
    ask = draw.pick(_BARE) if draw.chance(0.2) else tool.request(draw, arguments)
    chinese = any("一" <= char <= "鿿" for char in ask)
    return Turn(ask, _NO_TOOL_ZH if chinese else _NO_TOOL, "This needs a tool, and I have none.")


def no_call(draw: Draw, other: Turn) -> Conversation:
    """Tools are offered and `other` needs none of them."""
    tools = [any_tool(draw) for _ in range(draw.whole(1, 2))]
    return Conversation((other,), "", tuple(described(tool, draw) for tool in tools))
