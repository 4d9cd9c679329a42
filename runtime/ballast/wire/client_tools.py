"""Tools that are no plain functions, as the functions that a model of this family can call.

`custom` tools of OpenAI's APIs take a text instead of arguments; Anthropic's `bash`, `text_editor` and `memory` are run
by the client, and their schemas are known to both sides. Tools that another server would run are skipped.
"""

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
    """A tool as its client knows it, where that is not by the name that the model calls."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def skip(kind: Any, path: str, ignored: IgnoredFields) -> None:
    """Note a tool, or an item of a conversation, that this server cannot do anything with. Raises RequestError where
    what is not known is to be refused."""
    shown = f"is of type {str(kind)[:40]!r}, which this server does not run; leave it out"
    ignored.unknown(path, shown)


def custom_function(name: Any, description: Any, form: Any) -> dict[str, Any]:
    """A custom tool as a function of one text. Its grammar, which arguments cannot be held to, goes into the
    description."""
    said = [description] if isinstance(description, str) and description else []
    if isinstance(form, Mapping) and isinstance(definition := form.get("definition"), str):
        said.append(f"The input follows this {form.get('syntax', 'lark')} grammar:\n{definition}")
    return {
        "name": name,
        "description": "\n\n".join(said),
        "parameters": {
            "type": "object",
            "properties": {INPUT: {"type": "string"}},
            "required": [INPUT],
            "additionalProperties": False,
        },
    }


def custom_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A custom tool of the Chat Completions API as a function tool."""
    asked = tool.get("custom")
    custom: Mapping[str, Any] = asked if isinstance(asked, dict) else {}
    form = custom.get("format")
    grammar = form.get("grammar") if isinstance(form, dict) else None
    return {"type": "function", "function": custom_function(custom.get("name"), custom.get("description"), grammar)}


def custom_arguments(text: Any) -> str:
    """The arguments of a call of `custom_function`."""
    return orjson.dumps({INPUT: text if isinstance(text, str) else ""}).decode()


def custom_input(arguments: str) -> str:
    """The text of a call, from its arguments; the arguments themselves where they are cut short or no such object."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


class InputText:
    """The text of a custom tool's call while its arguments are streamed."""

    def __init__(self) -> None:
        self._rest = ""
        """Arguments whose text is not out yet."""
        self._inside = False

    def push(self, arguments: str) -> str:
        """Take more of the arguments, and return the text that is certain."""
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
"""Of a JSON string's inside: neither half an escape, nor half a pair of surrogates, nor the quote that ends it."""

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
        "Run a command in the client's shell, or start it anew.",
        _object((), command=_TEXT, restart={"type": "boolean"}),
    ),
    r"text_editor_\d{8}": (
        "View, create and edit files of the client's. str_replace replaces old_str, which must be there once, by "
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
"""Type → description and arguments, as Anthropic's documentation has them."""


def anthropic_function(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """A tool of Anthropic's that the client runs, as a function; None for other types."""
    kind = tool.get("type")
    for pattern, (description, parameters) in _ANTHROPICS.items():
        if isinstance(kind, str) and re.fullmatch(pattern, kind):
            return {"name": tool.get("name"), "description": description, "parameters": parameters}
    return None
