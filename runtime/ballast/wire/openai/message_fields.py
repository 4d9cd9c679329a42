"""The fields of messages, message parts and tools of a chat request. `ballast.text.messages` reads them."""

from __future__ import annotations

from ballast.text.messages import FUNCTION_NAME, ROLES
from ballast.wire.field_rules import Alias, NoEffect, Refused, shape
from ballast.wire.field_schemas import items

_CACHE_MARK = NoEffect("common prefixes are cached automatically")
_CACHE_RULES = {"cache_control": _CACHE_MARK, "prompt_cache_breakpoint": _CACHE_MARK}

_FUNCTION_CALL = shape("name", "arguments", rules={"parsed_arguments": NoEffect("repeats arguments")})
_TOOL_CALL = shape(
    "id",
    "type",
    "custom",
    rules={"index": NoEffect("calls are read in the order of the list")},
    function=_FUNCTION_CALL,
)
_OTHER_MEDIA = dict.fromkeys(
    ("audio_url", "image_url", "input_audio", "video_url"), Refused("this model reads only text")
)
_PART = shape(
    *("type", "text", "refusal"),
    rules={**_CACHE_RULES, **_OTHER_MEDIA},
    only_types=("text", "refusal", "file"),
    file=shape(
        *("filename", "file_data"),
        rules={
            "file_id": Refused("this server does not store files; send file_data"),
            "format": NoEffect("the file's content decides whether it is text"),
        },
    ),
)

MESSAGE = shape(
    "role",
    "name",
    "tool_call_id",
    "reasoning",
    "reasoning_content",
    "prefix",
    rules={
        **_CACHE_RULES,
        "annotations": NoEffect("earlier output, which is not read"),
        "audio": Refused("this model reads only text"),
        "parsed": NoEffect("repeats content"),
        "partial": Alias("prefix"),  # Moonshot's name
        "refusal": NoEffect("earlier output, which is not read"),
        "reasoning_details": NoEffect("repeats reasoning"),
        "tools": Refused("tools apply to the whole request", ([],)),
    },
    content=_PART,
    tool_calls=_TOOL_CALL,
    function_call=_FUNCTION_CALL,
)

TOOL = shape(
    "type",
    only_types=("function",),
    rules={**_CACHE_RULES, "defer_loading": NoEffect("all tools are always in the prompt")},
    function=shape(
        "name",
        "description",
        "parameters",
        "strict",
        rules={"defer_loading": NoEffect("all tools are always in the prompt")},
    ),
)

MESSAGE_ITEMS = items("role", rules=MESSAGE.rules, role={"enum": list(ROLES)})
"""The schema of messages. Their content is checked where it is read."""
_OBJECT_TYPE = {"anyOf": [{"enum": ["object", None]}, {"type": "array", "contains": {"const": "object"}}]}
FUNCTION_FIELDS = {
    "name": {"type": "string", "pattern": f"^{FUNCTION_NAME.pattern}$"},
    "description": {"type": ["string", "null"]},
    "parameters": {"anyOf": [{"enum": [True, None]}, {"type": "object", "properties": {"type": _OBJECT_TYPE}}]},
    "strict": {"type": ["boolean", "null"]},
}
"""The schemas of a function's fields."""
FUNCTION_SCHEMA = {"type": "object", "required": ["name"], "properties": FUNCTION_FIELDS}
TOOL_ITEMS = items("type", type={"type": "string"}, function=FUNCTION_SCHEMA)
"""The schema of tools. Tools of other types are left out."""
