"""Reads a file as a whole, up to a size."""

from __future__ import annotations

import codecs
from pathlib import Path

_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class DocumentError(Exception):
    """Why a file cannot be used, as the end of a sentence that begins with its name."""


def read_small(file: Path, max_bytes: int) -> bytes:
    """The content of a file of at most `max_bytes`. Raises DocumentError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise DocumentError(f"larger than {max_bytes} bytes, which no file of this kind is")
    return data


def without_mark(data: bytes) -> bytes:
    """The text's bytes without the byte-order mark that some editors write. Raises DocumentError for UTF-16."""
    if data.startswith(_OTHER_ENCODINGS):
        raise DocumentError("is text in UTF-16; save it as UTF-8")
    return data.removeprefix(codecs.BOM_UTF8)


def read_text(file: Path, max_bytes: int) -> str:
    """The text of a file of at most `max_bytes`. Raises DocumentError."""
    try:
        return without_mark(read_small(file, max_bytes)).decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"is no text in UTF-8: {error.reason} at byte {error.start}") from error
