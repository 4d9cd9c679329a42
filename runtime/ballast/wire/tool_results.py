"""Parts of tool results that the model cannot read, such as an image.

The client passes a tool's result on unchanged and keeps it in the conversation. If the server refused such a part, it
would refuse every later request of the conversation."""

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
    """Replace each part of a result that is not text with a note for the model, and note it in `ignored`. Values other
    than lists of parts are left unchanged. Raises RequestError if the server refuses unknown fields."""
    for n, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind in text_types or isinstance(part.get("text"), str):
            continue
        if is_text_file(part):
            continue
        shown = kind[:MAX_TYPE_CHARS]
        ignored.unknown(f"{path}.{n}", f"is of type {shown!r}, and this model reads only text; leave it out")
        parts[n] = {"type": "text", "text": f"({shown}: left out because this model reads only text)"}
