"""Converts tools that are not plain functions to functions that a model can call.

`custom` tools of OpenAI's APIs take a text instead of arguments. The client runs Anthropic's `bash`, `text_editor` and
`memory`, whose schemas Anthropic documents. Tools that would run on a server are skipped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ballast.wire.ignored_fields import IgnoredFields

INPUT = "input"
"""The argument that holds a custom tool's text."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool as the client knows it, if the model sees it under another name."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def skip(kind: Any, path: str, ignored: IgnoredFields) -> None:
    """Note a tool or an item of a conversation that this server cannot use. Raises RequestError if the server refuses
    unknown fields."""
    shown = f"is of type {str(kind)[:40]!r}, which this server does not run; leave it out"
    ignored.unknown(path, shown)


def custom_function(name: Any, description: Any, form: Any) -> dict[str, Any]:
    """A custom tool as a function with one text argument. Its grammar cannot be enforced and becomes part of the
    description."""
    texts = [description] if isinstance(description, str) and description else []
    if isinstance(form, Mapping) and isinstance(definition := form.get("definition"), str):
        texts.append(f"The input follows this {form.get('syntax', 'lark')} grammar:\n{definition}")
    return {
        "name": name,
        "description": "\n\n".join(texts),
        "parameters": {
            "type": "object",
            "properties": {INPUT: {"type": "string"}},
            "required": [INPUT],
            "additionalProperties": False,
        },
    }


def custom_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A custom tool of the Chat Completions API as a function tool."""
    declared = tool.get("custom")
    custom: Mapping[str, Any] = declared if isinstance(declared, dict) else {}
    form = custom.get("format")
    grammar = form.get("grammar") if isinstance(form, dict) else None
    return {"type": "function", "function": custom_function(custom.get("name"), custom.get("description"), grammar)}


def custom_arguments(text: Any) -> str:
    """The arguments of a call of `custom_function`."""
    return orjson.dumps({INPUT: text if isinstance(text, str) else ""}).decode()


def custom_input(arguments: str) -> str:
    """The text of a call, from its arguments; the arguments themselves if they are incomplete or have another form."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


class InputText:
    """Extracts the text of a custom tool's call while its arguments are streamed."""

    def __init__(self) -> None:
        self._rest = ""
        """Arguments whose text was not returned yet."""
        self._inside = False

    def push(self, arguments: str) -> str:
        """Add more of the arguments, and return the text that is complete."""
        self._rest += arguments
        if not self._inside:
            head = _INPUT_HEAD.match(self._rest)
            if head is None:
                return ""
            self._inside, self._rest = True, self._rest[head.end() :]
        whole = _WHOLE_CHARACTERS.match(self._rest)
        shown = whole[0] if whole else ""
        self._rest = self._rest[len(shown) :]
        return str(orjson.loads(f'"{shown}"'))


_INPUT_HEAD = re.compile(rf'\s*{{\s*"{INPUT}"\s*:\s*"')
_WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})+"
)
"""The complete characters inside a JSON string: without a partial escape, half a surrogate pair or the closing
quote."""

_TEXT = {"type": "string"}
_RANGE = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _object(required: tuple[str, ...], **properties: Any) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_EDITS: Mapping[str, Any] = {
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": {"type": "integer"},
    "insert_text": _TEXT,
    "view_range": _RANGE,
}
_ANTHROPICS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    r"bash_\d{8}": (
        "Run a command in the client's shell, or restart the shell.",
        _object((), command=_TEXT, restart={"type": "boolean"}),
    ),
    r"text_editor_\d{8}": (
        "View, create and edit the client's files. str_replace replaces old_str, which must occur exactly once, with "
        "new_str; insert puts insert_text after the line insert_line.",
        _object(
            ("command", "path"),
            command={"enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
            **_EDITS,
        ),
    ),
    r"memory_\d{8}": (
        "Files that outlive the conversation, below /memories: view, create, str_replace, insert, delete, rename.",
        _object(
            ("command",),
            command={"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
            **_EDITS,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}
"""Type → description and arguments, from Anthropic's documentation."""


def anthropic_function(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """One of Anthropic's client-side tools as a function; None for other types."""
    kind = tool.get("type")
    for pattern, (description, parameters) in _ANTHROPICS.items():
        if isinstance(kind, str) and re.fullmatch(pattern, kind):
            return {"name": tool.get("name"), "description": description, "parameters": parameters}
    return None
