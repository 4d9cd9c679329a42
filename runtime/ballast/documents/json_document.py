"""Reads a JSON file whose shape is known."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ballast.documents.small_file import DocumentError, read_small, without_mark
from ballast.errors import shown

MAX_BYTES = 8 << 20

Shape = TypeVar("Shape", bound=BaseModel)


def read_json(file: Path, shape: type[Shape], max_bytes: int = MAX_BYTES) -> Shape:
    """The content of a file as `shape` has it. Raises DocumentError, which names the first field that is wrong.

    The library's parser refuses by itself what Python's lets through: deep nesting, unpaired surrogates.
    """
    return parse_json(read_small(file, max_bytes), shape)


def parse_json(data: bytes, shape: type[Shape]) -> Shape:
    """A document that `shape` has the form of. Raises DocumentError as `read_json` does."""
    try:
        return shape.model_validate_json(without_mark(data))
    except ValidationError as error:
        raise DocumentError(_problem(error.errors(include_url=False, include_context=False)[0])) from error


def _problem(detail: ErrorDetails) -> str:
    path = shown(".".join(map(str, detail["loc"])), 200)
    if detail["type"] == "json_invalid":
        return f"is not JSON: {detail['msg'].removeprefix('Invalid JSON: ')}"
    if not path:
        return f"expected a JSON object, found {type(detail['input']).__name__}"
    if detail["type"] == "missing":
        return f"{path} is missing"
    return f"{path}={shown(detail['input'])}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
