"""Decides which tools a reply may call, and whether it must call one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast.errors import RequestError
from ballast.text.messages import normalize_tools
from ballast.wire.openai.chat_tools import AllowedToolsChoice, NamedTool
from ballast.wire.openai.request import ChatCompletionRequest


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tool settings of a request."""

    tools: tuple[Mapping[str, Any], ...]
    """All tools in the prompt, normalised (`normalize_tools`); at least one."""
    only: frozenset[str] | None = None
    """Names of the tools that may be called; None: all."""
    is_required: bool = False
    """Whether a call must be made."""
    is_named: bool = False
    """Whether the client named the tool to call."""
    is_parallel: bool = True
    """Whether more than one call may be made."""


def tool_use(body: ChatCompletionRequest) -> ToolUse | None:
    """The tool settings of a request; None if the reply cannot call any. Raises RequestError."""
    tools = tuple(normalize_tools(body.tools or ()))
    choice = body.tool_choice or "auto"
    if not tools and choice not in ("none", "auto"):
        raise RequestError(
            "tool_choice: the request has no tools; add tools, which the client runs",
            param="tool_choice",
        )
    if choice == "none" or not tools:
        return None
    is_parallel = body.parallel_tool_calls is not False
    match choice:
        case NamedTool():
            only = _declared([choice], tools, "tool_choice.function.name")
            return ToolUse(tools, only, is_required=True, is_named=True, is_parallel=False)
        case AllowedToolsChoice():
            allowed = choice.allowed_tools
            only = _declared(allowed.tools, tools, "tool_choice.allowed_tools.tools")
            return ToolUse(tools, only, is_required=allowed.mode == "required", is_parallel=is_parallel)
        case _:
            return ToolUse(tools, is_required=choice == "required", is_parallel=is_parallel)


def _declared(chosen: Sequence[NamedTool], tools: Sequence[Mapping[str, Any]], param: str) -> frozenset[str]:
    declared = {tool["function"]["name"] for tool in tools}
    names = frozenset(tool.function.name for tool in chosen)
    if missing := names - declared:
        raise RequestError(f"{param}: no tool is named {min(missing)!r}", param=param)
    return names
