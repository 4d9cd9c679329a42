"""Fields of OpenAI's Responses API that have no effect here or are refused, and what its items and tools hold."""

from __future__ import annotations

from collections.abc import Mapping

from ballast.wire.field_rules import NoEffect, Refused, Rule, shape

_ONE_CACHE = NoEffect("the prefix cache finds every common prefix by itself")
_RECORDS = NoEffect("for the provider's own records, and this server keeps none")
_REPLY = NoEffect("of a reply, for the reader")
_NO_STORE = "this server stores no responses; send the whole conversation as input"

RESPONSES_RULES: Mapping[str, Rule] = {
    "background": Refused("a response is made while its client waits", (False,)),
    "client_metadata": _RECORDS,
    "context_management": NoEffect("the conversation stays in the prompt as it was sent"),
    "conversation": Refused(_NO_STORE),
    "max_tool_calls": NoEffect("about tools that run in the server, and there are none"),
    "moderation": Refused("this server moderates nothing"),
    "previous_response_id": Refused(_NO_STORE),
    "prompt": Refused(_NO_STORE),
    "prompt_cache_key": _ONE_CACHE,
    "prompt_cache_options": _ONE_CACHE,
    "prompt_cache_retention": _ONE_CACHE,
    "safety_identifier": _RECORDS,
    "service_tier": NoEffect("there is one tier"),
    "store": NoEffect("nothing is stored, and replies say so"),
    "stream_options": NoEffect("only about padding of chunks, which are never padded"),
    # vLLM
    "enable_response_messages": Refused("responses hold items, and no tokens", (False,)),
    "mm_processor_kwargs": NoEffect("about images, audio and video, which are refused where they are sent"),
    "previous_input_messages": Refused(_NO_STORE, ([],)),
    "previous_response": Refused(_NO_STORE),
    "vllm_xargs": Refused("vLLM's extensions are not here", ({},)),
}

_ITEM_RULES: Mapping[str, Rule] = {
    "encrypted_content": NoEffect("reasoning is not encrypted here"),
    "id": NoEffect("nothing is stored under it"),
    "internal_chat_message_metadata_passthrough": _RECORDS,
    "parsed_arguments": NoEffect("repeats arguments"),
    "phase": NoEffect("a hint, which this model was not trained to follow"),
    "status": _REPLY,
    "summary": NoEffect("reasoning itself is read"),
}
_PART_RULES: Mapping[str, Rule] = {
    "annotations": _REPLY,
    "logprobs": _REPLY,
    "parsed": NoEffect("repeats text"),
    "prompt_cache_breakpoint": _ONE_CACHE,
}
_MEDIA = ("image_url", "input_audio")
_NO_FILES = Refused("this server fetches and stores no files; send file_data")
_FILES: Mapping[str, Rule] = {
    "detail": NoEffect("about pictures of a file's pages"),
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
"""Types of items that tell what another server did, or a tool of a type that is skipped here."""
_TOOL_RULES = {"defer_loading": NoEffect("every tool is in the prompt")}
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
    rules={**_PART_RULES, **_FILES, **dict.fromkeys(_MEDIA, NoEffect("the model reads that something was left out"))},
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
