"""Which tools a request's reply may call, and whether it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ballast.errors import RequestError
from ballast.server.openai_request import ChatCompletionRequest, NamedTool
from ballast.text.messages import normalize_tools


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says about tools."""

    tools: tuple[Mapping[str, Any], ...]
    """Normalised (`normalize_tools`); those that may be called, at least one."""
    is_required: bool = False
    """A call must be made."""
    only: str | None = None
    """The one tool that may be called, where the client chose it."""
    is_parallel: bool = True
    """More than one call may be made."""

    @property
    def is_named(self) -> bool:
        """Whether the client chose the call."""
        return self.only is not None


def tool_use(body: ChatCompletionRequest) -> ToolUse | None:
    """None where the reply calls no tools. Raises RequestError."""
    tools = normalize_tools(body.tools or ())
    choice = body.tool_choice or "auto"
    if not tools and choice not in ("none", "auto"):
        raise RequestError("tool_choice: there are no tools to choose from", param="tool_choice")
    if choice == "none" or not tools:
        return None
    only = choice.function.name if isinstance(choice, NamedTool) else None
    return ToolUse(
        tuple(tools),
        is_required=choice != "auto",
        only=only,
        is_parallel=body.parallel_tool_calls is not False and only is None,
    )
