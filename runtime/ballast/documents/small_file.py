"""Reads a file as a whole, up to a size."""

from __future__ import annotations

from pathlib import Path


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


def read_text(file: Path, max_bytes: int) -> str:
    """The text of a file of at most `max_bytes`. Raises DocumentError."""
    try:
        return read_small(file, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"is no text in UTF-8: {error.reason} at byte {error.start}") from error
