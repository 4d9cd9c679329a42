"""Fields of Anthropic's Messages API that have no effect here or are refused, and the fields of messages and tools."""

from __future__ import annotations

from collections.abc import Mapping

from ballast.wire.field_rules import NoEffect, Refused, Rule, shape

_ONE_CACHE = NoEffect("common prefixes are cached automatically")
_RECORDS = NoEffect("for records, which this server does not keep")
_REPLY = NoEffect("earlier output, which is not read")
_ALL_TOOLS = NoEffect("all tools are always in the prompt")

MESSAGES_RULES: Mapping[str, Rule] = {
    "cache_control": _ONE_CACHE,
    "container": Refused("this server does not run tools or keep containers"),
    "context_management": NoEffect("the conversation stays in the prompt as it was sent"),
    "inference_geo": NoEffect("this server runs in a single location"),
    "mcp_servers": Refused("this server does not call MCP servers; send their tools as functions", ([],)),
    "metadata": _RECORDS,
    "service_tier": NoEffect("there is only one service tier"),
    "speed": NoEffect("every reply is generated at full speed"),
    "user_profile_id": _RECORDS,
}

_NO_FILES = Refused("files are not fetched or stored; send the text")
_BLOCK_RULES: Mapping[str, Rule] = {
    "cache_control": _ONE_CACHE,
    "citations": _REPLY,
    "caller": _REPLY,
}
_TEXT_BLOCK = shape("type", "text", rules=_BLOCK_RULES)
_SOURCE = shape(
    *("type", "media_type", "data"),
    rules={"file_id": _NO_FILES, "url": _NO_FILES},
    content=_TEXT_BLOCK,
)
_INNER_BLOCK = shape("type", "text", "title", "context", rules=_BLOCK_RULES, source=_SOURCE, content=_TEXT_BLOCK)
BLOCK = shape(
    "type",
    "text",
    "id",
    "name",
    "input",
    "tool_use_id",
    "is_error",
    "thinking",
    "data",
    "title",
    "context",
    rules={
        **_BLOCK_RULES,
        "signature": NoEffect("reasoning is not signed here"),
        "encrypted_content": NoEffect("only Anthropic can decrypt it"),
    },
    only_types=("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document", "search_result"),
    content=_INNER_BLOCK,
    source=_SOURCE,
)
MESSAGE = shape("role", content=BLOCK)
TOOL = shape(
    "max_characters",
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    rules={
        "allowed_callers": NoEffect("only the model calls tools"),
        "cache_control": _ONE_CACHE,
        "defer_loading": _ALL_TOOLS,
        "eager_input_streaming": NoEffect("arguments are always streamed as they are generated"),
        "input_examples": NoEffect("the model's chat template does not use examples"),
    },
    only_types=("custom", "function"),
)
TOOL_CHOICE = shape("type", "name", "disable_parallel_tool_use")
THINKING = shape("type", "budget_tokens", "display")
