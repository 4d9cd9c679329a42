"""Fields of Anthropic's Messages API that have no effect here or are refused, and what is in messages and tools."""

from __future__ import annotations

from collections.abc import Mapping

from ballast.wire.field_rules import NoEffect, Refused, Rule, shape

_ONE_CACHE = NoEffect("the prefix cache finds every common prefix by itself")
_RECORDS = NoEffect("for the provider's own records, and this server keeps none")
_REPLY = NoEffect("of a reply, for the reader")
_ALL_TOOLS = NoEffect("every tool is in the prompt")

MESSAGES_RULES: Mapping[str, Rule] = {
    "cache_control": _ONE_CACHE,
    "container": Refused("this server runs no tools and keeps no containers"),
    "context_management": NoEffect("the conversation stays in the prompt as it was sent"),
    "inference_geo": NoEffect("there is one place"),
    "mcp_servers": Refused("this server calls no others; the client's own tools are known", ([],)),
    "metadata": _RECORDS,
    "service_tier": NoEffect("there is one tier"),
    "speed": NoEffect("every reply comes as fast as it can"),
    "user_profile_id": _RECORDS,
}

_NO_FILES = Refused("this server fetches and stores no files; send the text")
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
        "encrypted_content": NoEffect("only Anthropic can read it"),
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
        "allowed_callers": NoEffect("tools are called by the model alone"),
        "cache_control": _ONE_CACHE,
        "defer_loading": _ALL_TOOLS,
        "eager_input_streaming": NoEffect("arguments are streamed as they come"),
        "input_examples": NoEffect("templates of this family write no examples"),
    },
    only_types=("custom", "function"),
)
TOOL_CHOICE = shape("type", "name", "disable_parallel_tool_use")
THINKING = shape("type", "budget_tokens", "display")
