"""Parts of tool results that this model cannot read, such as the picture that a tool has made.

The program that calls the tool hands its result on as it is, and keeps it in the conversation: refused, it would be
refused with every request that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ballast.wire.ignored_fields import IgnoredFields

MAX_TYPE_CHARS = 40


def replace_media(
    parts: Any,
    text_types: Collection[str],
    is_text_file: Callable[[Mapping[str, Any]], bool],
    path: str,
    ignored: IgnoredFields,
) -> None:
    """Put a note for the model in place of each part of a result that holds no text, and note it in `ignored`. What is
    no list of parts is left for those who read it. Raises RequestError where what is not known is to be refused."""
    for n, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind in text_types or isinstance(part.get("text"), str):
            continue
        if is_text_file(part):
            continue
        shown = kind[:MAX_TYPE_CHARS]
        ignored.unknown(f"{path}.{n}", f"is of type {shown!r}, and this model reads only text; leave it out")
        parts[n] = {"type": "text", "text": f"({shown}: left out, since only text can be read here)"}
