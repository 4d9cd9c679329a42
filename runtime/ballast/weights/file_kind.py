"""Recognizes files that look like a model but contain none, from their first bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ballast.weights.header import texts

OTHER_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "mmproj": "the part of a model that sees images (mmproj), which is not supported; name the file of its "
        "language model",
        "imatrix": "an importance matrix (imatrix), which quantizers read; name the file of a model",
        "adapter": "an adapter (LoRA), which is not supported; merge it into its model and name the result",
        "controlvector": "a control vector, which is not supported; name the file of a model",
    }
)
"""Content of GGUF files that are not models, by their `general.type`, and what to do."""

VOCABULARY = "a vocabulary without weights; name the file of a model"

_TYPE_OF_ARCHITECTURE = {"clip": "mmproj", "imatrix": "imatrix", "controlvector": "controlvector"}
_READ_BYTES = 64 << 10
"""The general keys come first in every published file."""
_FOREIGN = (
    (b"\x00\x05\x16\x07", "metadata that macOS keeps in a file of its own (AppleDouble)"),
    (b"version https://git-lfs", "a pointer of Git LFS; `git lfs pull` fetches the file"),
    (b"<!DOCTYPE", "a web page, not the file behind it"),
    (b"<html", "a web page, not the file behind it"),
)
"""First bytes of known files that are not GGUF, and descriptions."""


def other_type(metadata: Mapping[str, object]) -> str | None:
    """The key of `OTHER_KINDS` for a GGUF file with these keys; None for a model."""
    kind = metadata.get("general.type")
    architecture = metadata.get("general.architecture")
    if isinstance(kind, str) and kind in OTHER_KINDS:
        return kind
    return _TYPE_OF_ARCHITECTURE.get(architecture) if isinstance(architecture, str) else None


def foreign_kind(head: bytes) -> str | None:
    """A description of a file other than a GGUF that begins with these bytes; None if it is unknown."""
    return next((kind for begin, kind in _FOREIGN if head[: len(begin)].lower() == begin.lower()), None)


def kind_instead_of_model(file: Path, *, is_shard: bool) -> str | None:
    """A description of a file that holds no model; None for a model, and for a file that must be opened to find out.

    `is_shard`: it is one of several files; the first one may contain no tensors.
    """
    if file.is_symlink() and not file.exists():
        return f"a link to {file.readlink()}, which does not exist"
    if not file.is_file():
        return None
    try:
        with file.open("rb") as stream:
            head = stream.read(_READ_BYTES)
    except OSError:
        return None
    if not head:
        return "an empty file"
    if not head.startswith(b"GGUF"):
        return foreign_kind(head) or "no GGUF file"
    kind = other_type(texts(head, "general.type", "general.architecture"))
    if kind is not None:
        return OTHER_KINDS[kind]
    return VOCABULARY if head[8:16] == bytes(8) and not is_shard else None
