"""Tools of a chat request: the choice of a tool, and tools that are not plain functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ballast.wire.client_tools import custom_arguments, custom_tool, skip
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.openai.file_parts import is_text_file
from ballast.wire.parsing import StrictModel
from ballast.wire.tool_results import replace_media

MAX_TOOLS = 1024


class NamedFunction(StrictModel):
    """The function of a `tool_choice`."""

    name: str


class NamedTool(StrictModel):
    """A `tool_choice` that names the function to call."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(StrictModel):
    """The tools that may be called, and whether a call is required."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(StrictModel):
    """A `tool_choice` that allows some of the tools. The prompt still lists all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")]
)


def skip_foreign_tools(value: dict[str, Any], ignored: IgnoredFields) -> None:
    """Remove tools that would run on a server, such as a web search, from a chat request."""
    tools = value.get("tools")
    if not isinstance(tools, list):
        return
    kept = []
    for n, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in ("function", "custom"):
            skip(kind, f"tools.{n}", ignored)
        else:
            kept.append(tool)
    value["tools"] = kept


def replace_media_of_results(value: dict[str, Any], ignored: IgnoredFields) -> None:
    """Replace images and other media in a chat request's tool results with notes."""
    messages = value.get("messages")
    for n, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict) and message.get("role") in ("tool", "function"):
            replace_media(message.get("content"), ("text",), is_text_file, f"messages.{n}.content", ignored)


def read_custom_tools(value: dict[str, Any]) -> frozenset[str]:
    """Replace a chat request's custom tools, and the calls of these in its messages, with functions. Returns their
    names."""
    messages, choice = value.get("messages"), value.get("tool_choice")
    tools = value["tools"] if isinstance(value.get("tools"), list) else []
    names = set()
    for n, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == "custom":
            tools[n] = custom_tool(tool)
            names.add(str(tools[n]["function"]["name"]))
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and call.get("type") == "custom" and isinstance(call.get("custom"), dict):
                called = call.pop("custom")
                call["type"] = "function"
                call["function"] = {"name": called.get("name"), "arguments": custom_arguments(called.get("input"))}
    if isinstance(choice, dict) and choice.get("type") == "custom":
        value["tool_choice"] = {"type": "function", "function": choice.get("custom")}
    return frozenset(names)
