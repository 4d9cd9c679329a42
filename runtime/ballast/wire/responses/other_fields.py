"""Fields of OpenAI's Responses API that have no effect here or are refused, and the fields of its items and tools."""

from __future__ import annotations

from collections.abc import Mapping

from ballast.wire.field_rules import NoEffect, Refused, Rule, shape

_ONE_CACHE = NoEffect("common prefixes are cached automatically")
_RECORDS = NoEffect("for records, which this server does not keep")
_REPLY = NoEffect("earlier output, which is not read")
_NO_STORE = "this server does not store responses; send the whole conversation as input"

RESPONSES_RULES: Mapping[str, Rule] = {
    "background": Refused("responses cannot run in the background; leave the connection open", (False,)),
    "client_metadata": _RECORDS,
    "context_management": NoEffect("the conversation stays in the prompt as it was sent"),
    "conversation": Refused(_NO_STORE),
    "max_tool_calls": NoEffect("a setting for tools that run in the server, and there are none"),
    "moderation": Refused("this server does not moderate content"),
    "previous_response_id": Refused(_NO_STORE),
    "prompt": Refused(_NO_STORE),
    "prompt_cache_key": _ONE_CACHE,
    "prompt_cache_options": _ONE_CACHE,
    "prompt_cache_retention": _ONE_CACHE,
    "safety_identifier": _RECORDS,
    "service_tier": NoEffect("there is only one service tier"),
    "store": NoEffect("nothing is stored, and replies report this"),
    "stream_options": NoEffect("a setting for the padding of chunks, which are never padded"),
    # vLLM
    "enable_response_messages": Refused("responses contain items, not tokens", (False,)),
    "mm_processor_kwargs": NoEffect("for images, audio and video, which are refused"),
    "previous_input_messages": Refused(_NO_STORE, ([],)),
    "previous_response": Refused(_NO_STORE),
    "vllm_xargs": Refused("vLLM's extensions are not supported", ({},)),
}

_ITEM_RULES: Mapping[str, Rule] = {
    "encrypted_content": NoEffect("reasoning is not encrypted here"),
    "id": NoEffect("nothing is stored under it"),
    "internal_chat_message_metadata_passthrough": _RECORDS,
    "parsed_arguments": NoEffect("repeats arguments"),
    "phase": NoEffect("a hint that this model was not trained to follow"),
    "status": _REPLY,
    "summary": NoEffect("the model reads the reasoning itself"),
}
_PART_RULES: Mapping[str, Rule] = {
    "annotations": _REPLY,
    "logprobs": _REPLY,
    "parsed": NoEffect("repeats text"),
    "prompt_cache_breakpoint": _ONE_CACHE,
}
_MEDIA = ("image_url", "input_audio")
_NO_FILES = Refused("files are not fetched or stored; send file_data")
_FILES: Mapping[str, Rule] = {
    "detail": NoEffect("a setting for images of a file's pages"),
    "file_id": _NO_FILES,
    "file_url": _NO_FILES,
}
READ_ITEMS = (
    *("message", "reasoning", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output", "additional_tools"),
)
"""Types of items that are part of the conversation."""
SKIPPED_ITEMS = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output"),
        *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
        *("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
        *("tool_search_call", "tool_search_output", "compaction", "compaction_summary"),
    }
)
"""Types of items that record the actions of another server or of a tool type that is skipped here."""
_TOOL_RULES = {"defer_loading": NoEffect("all tools are always in the prompt")}
_FUNCTION = shape(
    *("type", "name", "description", "parameters", "strict", "format"),
    rules=_TOOL_RULES,
    only_types=("function", "custom"),
)
TOOL = shape(
    *("type", "name", "description", "parameters", "strict", "format"),
    rules=_TOOL_RULES,
    only_types=("function", "custom", "namespace"),
    tools=_FUNCTION,
)
TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "refusal"})
"""Types of parts that are read."""
FILE_PART = "input_file"
_PART = shape(
    *("type", "text", "refusal", "filename", "file_data"),
    rules={**_PART_RULES, **_FILES, **dict.fromkeys(_MEDIA, Refused("this model reads only text"))},
    only_types=(*TEXT_PARTS, FILE_PART),
)
_OUTPUT_PART = shape(
    *("type", "text", "refusal", "filename", "file_data"),
    rules={
        **_PART_RULES,
        **_FILES,
        **dict.fromkeys(_MEDIA, NoEffect("the model reads a note that something was left out")),
    },
)
ITEM = shape(
    "type",
    "role",
    "call_id",
    "name",
    "namespace",
    "arguments",
    "input",
    rules=_ITEM_RULES,
    only_types=READ_ITEMS,
    content=_PART,
    output=_OUTPUT_PART,
    tools=TOOL,
)
TEXT_FORMAT = shape("type", "name", "description", "schema", "strict")
TOOL_CHOICE = shape("type", "name", "mode", tools=shape("type", "name"))
