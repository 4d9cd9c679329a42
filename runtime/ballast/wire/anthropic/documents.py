"""Blocks of Anthropic's API that contain a text: documents and search results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ballast.errors import RequestError
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.parsing import refuse
from ballast.wire.text_files import decoded_text, file_prompt

TYPES = ("document", "search_result")


def document_text(block: Mapping[str, Any], path: str) -> str:
    """The text of a block of one of TYPES for the model. Raises RequestError for a block without text, such as a
    PDF."""
    if block.get("type") == "search_result":
        found = (block.get("title"), block.get("source"))
        name = " - ".join(each for each in found if isinstance(each, str))
        return file_prompt(name, _content_text(block.get("content"), f"{path}.content"))
    text = file_prompt(block.get("title"), _source_text(block.get("source"), f"{path}.source"))
    context = block.get("context")
    return f"{context}\n{text}" if isinstance(context, str) and context else text


def is_text_document(block: Mapping[str, Any]) -> bool:
    """Whether `document_text` can read this block."""
    if block.get("type") not in TYPES:
        return False
    try:
        document_text(block, "")
    except RequestError:
        return False
    return True


def note_citations(blocks: Iterator[tuple[str, Mapping[str, Any]]], ignored: IgnoredFields) -> None:
    """Note in `ignored` where citations are requested: replies here do not have them."""
    for path, block in blocks:
        citations = block.get("citations")
        if block.get("type") in TYPES and isinstance(citations, dict) and citations.get("enabled"):
            ignored.add(f"{path}.citations")


def _source_text(source: Any, path: str) -> str:
    given: Mapping[str, Any] = source if isinstance(source, dict) else {}
    kind = given.get("type")
    if kind == "content":
        return _content_text(given.get("content"), f"{path}.content")
    if kind == "base64":
        return decoded_text(given.get("data"), f"{path}.data")
    if kind != "text":
        refuse(f"{path}.type", f"is {kind!r}; this server fetches and stores no files; send the text")
    text = given.get("data")
    if not isinstance(text, str):
        refuse(f"{path}.data", "must be a string")
    return text


def _content_text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(path, "must be a string or a list of text blocks")
    texts = []
    for n, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            refuse(f"{path}.{n}", "this model reads only text blocks; leave the block out")
        texts.append(text)
    return "\n".join(texts)
