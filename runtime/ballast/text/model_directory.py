"""The model directory that `--model_path` names, and its small JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ballast.documents.json_document import read_json
from ballast.documents.small_file import DocumentError, read_text
from ballast.errors import ModelError

_MAX_TEMPLATE_BYTES = 1 << 20
_CONFIG = ConfigDict(strict=True, frozen=True, extra="ignore")


def _content(value: Any) -> Any:
    """A token: a text, or an object with its content."""
    return value.get("content") if isinstance(value, Mapping) else value


def _default_template(value: Any) -> Any:
    """One template, or the one called "default" of a list."""
    if not isinstance(value, list):
        return value
    entries = [entry for entry in value if isinstance(entry, Mapping) and entry.get("name") == "default"]
    if len(entries) > 1 or not all(isinstance(entry, Mapping) for entry in value):
        raise ValueError("expected objects with name and template, each name once")
    return entries[0].get("template") if entries else None


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


_TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_TokenText = Annotated[str | None, BeforeValidator(_content)]
_TokenIds = Annotated[list[_TokenId] | None, BeforeValidator(_as_list)]


class TokenizerConfig(BaseModel):
    """The used keys of tokenizer_config.json."""

    model_config = _CONFIG

    add_bos_token: bool | None = None
    bos_token: _TokenText = None
    eos_token: _TokenText = None
    chat_template: Annotated[str | None, BeforeValidator(_default_template)] = None


class GenerationConfig(BaseModel):
    """The used keys of generation_config.json."""

    model_config = _CONFIG

    bos_token_id: _TokenIds = None
    eos_token_id: _TokenIds = None


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """The directory, if there is one. Its files are optional."""

    path: Path | None
    tokenizer_config: TokenizerConfig
    generation_config: GenerationConfig

    @classmethod
    def read(cls, path: Path | None) -> ModelDirectory:
        """Raises ModelError for a file that cannot be used."""
        return cls(
            path,
            _read(path, "tokenizer_config.json", TokenizerConfig),
            _read(path, "generation_config.json", GenerationConfig),
        )

    def file(self, name: str) -> Path | None:
        """The path of a file; None if it does not exist."""
        return self.path / name if self.path is not None and (self.path / name).is_file() else None


_Shape = TypeVar("_Shape", bound=BaseModel)


def _read(path: Path | None, name: str, shape: type[_Shape]) -> _Shape:
    if path is None or not (path / name).is_file():
        return shape()
    try:
        return read_json(path / name, shape)
    except DocumentError as error:
        raise ModelError(path / name, str(error)) from error


def read_template(file: Path) -> str:
    """The text of a template. Raises DocumentError."""
    return read_text(file, _MAX_TEMPLATE_BYTES)
