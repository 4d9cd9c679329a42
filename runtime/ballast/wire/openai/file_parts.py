"""Reads parts of type `file` in a chat's messages if they contain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast.errors import RequestError
from ballast.wire.parsing import refuse
from ballast.wire.text_files import decoded_text, file_prompt


def read_files(messages: Sequence[Mapping[str, Any]]) -> None:
    """Replace the file parts of messages with text parts. Raises RequestError for files that are not text."""
    for n, message in enumerate(messages):
        parts = message.get("content")
        for m, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(parts, list) and isinstance(part, dict) and part.get("type") == "file":
                parts[m] = {"type": "text", "text": _text(part, f"messages.{n}.content.{m}")}


def is_text_file(part: Mapping[str, Any]) -> bool:
    """Whether `read_files` can read this part."""
    try:
        return part.get("type") == "file" and bool(_text(part, ""))
    except RequestError:
        return False


def _text(part: Mapping[str, Any], path: str) -> str:
    file = part.get("file")
    if not isinstance(file, dict):
        refuse(f"{path}.file", "must be an object")
    return file_prompt(file.get("filename"), decoded_text(file.get("file_data"), f"{path}.file.file_data"))
