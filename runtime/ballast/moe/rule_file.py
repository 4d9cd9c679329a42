"""Reads placement rules in the form of KTransformers' optimize_config files.

A file is a list of `{match: {name, class}, replace: {class, kwargs}, recursive}`. Ballast takes the devices from the
rules. Which kernel computes a module is its own choice: KTransformers' names for kernels and classes are accepted, and
reported as not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from ballast.documents.small_file import DocumentError
from ballast.documents.yaml_document import Plain, read_yaml
from ballast.errors import ConfigError, shown
from ballast.moe.device_rules import Module, Rule, last_part
from ballast.moe.ktransformers_names import BACKEND_KEYS, BACKENDS, CLASSES, IGNORED_KEYS
from ballast.moe.match_names import PatternError, match_names

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")


def read_rules(file: Path, modules: Sequence[Module]) -> tuple[Rule, ...]:
    """The rules of a file, and which of a model's modules they name. Raises ConfigError naming the rule and what is
    wrong with it."""
    try:
        document = read_yaml(file)
    except DocumentError as error:
        raise ConfigError("optimize_config_path", file, str(error)) from error
    if not isinstance(document, list) or not document:
        raise ConfigError("optimize_config_path", file, "must be a list of rules, each with match and replace")
    entries = [_checked(file, index, entry) for index, entry in enumerate(document, start=1)]
    named = _named(file, entries, modules)
    return tuple(entry.rule(index, named.get(index, frozenset())) for index, entry in enumerate(entries, start=1))


# --- the shape of a file ----------------------------------------------------------------------------------------


def _leaf(accepts: Callable[[Any], bool], kind: str, problem: str) -> PlainValidator:
    """Checks a value. `kind` says how the problem is told: "must" or "unknown"."""

    def check(value: object) -> object:
        if not accepts(value):
            raise PydanticCustomError(kind, problem)
        return value

    return PlainValidator(check)


_Text = Annotated[str, _leaf(lambda value: isinstance(value, str) and value != "", "must", "must be a text")]
_Switch = Annotated[bool, _leaf(lambda value: isinstance(value, bool), "must", "must be true or false")]
_Device = Annotated[
    str,
    _leaf(
        lambda value: isinstance(value, str) and _DEVICE.fullmatch(value) is not None,
        "must",
        "must be cpu, cuda or cuda:N",
    ),
]
_Backend = Annotated[
    str,
    _leaf(
        lambda value: isinstance(value, str) and value in BACKENDS,
        "unknown",
        f"is not known; known are {', '.join(BACKENDS)}",
    ),
]
_Class = Annotated[
    str,
    _leaf(
        lambda value: isinstance(value, str) and last_part(value) in CLASSES,
        "unknown",
        f"is not known; known are {', '.join(sorted(CLASSES))}",
    ),
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Match(_Part):
    name: _Text | None = None
    class_name: _Text | None = Field(None, alias="class")

    @model_validator(mode="after")
    def _check_any(self) -> _Match:
        if self.name is None and self.class_name is None:
            raise PydanticCustomError("alone", "must have name, class, or both")
        return self


class _Kwargs(_Part):
    generate_device: _Device | None = None
    device: _Device | None = None
    generate_op: _Backend | None = None
    prefill_op: _Backend | None = None
    backend: _Backend | None = None
    prefill_device: _Device | None = None
    out_device: _Device | None = None
    absorb_for_prefill: Any = None
    transfer_map: Any = None
    per_layer_prefill_intput_threshold: Any = None

    def notes(self) -> Iterator[str]:
        """What is accepted and not used."""
        for key in BACKEND_KEYS:
            value = getattr(self, key)
            if value is not None:
                yield f"{value} is not used: {BACKENDS[value]}"
        for key, instead in IGNORED_KEYS.items():
            if key in self.model_fields_set:
                yield f"{key} is not used: {instead}"


class _Replace(_Part):
    class_name: _Class = Field("default", alias="class")
    kwargs: _Kwargs | None = None


class _Entry(_Part):
    match: _Match
    replace: _Replace
    recursive: _Switch = True

    def rule(self, index: int, named: frozenset[str]) -> Rule:
        kwargs = self.replace.kwargs or _Kwargs()
        return Rule(
            index=index,
            pattern=self.match.name,
            named=named,
            class_name=self.match.class_name,
            device=kwargs.generate_device or kwargs.device,
            notes=tuple(kwargs.notes()),
            recursive=self.recursive,
        )


_PARTS: Mapping[tuple[str, ...], tuple[str, type[_Part]]] = {
    (): ("a rule", _Entry),
    ("match",): ("match", _Match),
    ("replace",): ("replace", _Replace),
    ("replace", "kwargs"): ("replace.kwargs", _Kwargs),
}
"""Where a part is → what messages call it, and its shape."""


def _checked(file: Path, index: int, entry: Plain) -> _Entry:
    try:
        return _Entry.model_validate(entry)
    except ValidationError as error:
        problem = _problem(error.errors(include_url=False, include_context=False)[0])
        match, told = entry.get("match") if isinstance(entry, dict) else None, ""
        if isinstance(match, dict):
            told = ", ".join(f"{key}: {shown(match[key])}" for key in _keys(_Match) if key in match)
        raise _wrong(file, index, told, problem) from error


def _problem(detail: ErrorDetails) -> str:
    path = tuple(str(step) for step in detail["loc"])
    match detail["type"]:
        case "missing":
            return f"{_PARTS[path[:-1]][0]} needs {path[-1]}"
        case "extra_forbidden":
            part, shape = _PARTS[path[:-1]]
            return f"{part} has {shown(path[-1])}; allowed are {', '.join(_keys(shape))}"
        case "must":
            return f"{'.'.join(path)} {detail['msg']}, not {shown(detail['input'])}"
        case "unknown":
            return f"{'.'.join(path)} {shown(detail['input'])} {detail['msg']}"
        case "alone":
            return f"{'.'.join(path)} {detail['msg']}"
        case _:
            part, shape = _PARTS[path]
            return f"{part} must be a mapping with {', '.join(_keys(shape))}"


def _keys(shape: type[_Part]) -> Iterator[str]:
    return (info.alias or name for name, info in shape.model_fields.items())


def _named(file: Path, entries: Sequence[_Entry], modules: Sequence[Module]) -> dict[int, frozenset[str]]:
    """By the index of a rule that has a pattern, the modules that it names."""
    patterns = {index: entry.match.name for index, entry in enumerate(entries, 1) if entry.match.name is not None}
    indices = list(patterns)
    try:
        return dict(
            zip(indices, match_names(list(patterns.values()), [module.name for module in modules]), strict=True)
        )
    except PatternError as error:
        index = indices[error.index]
        hint = (
            "; a range of numbers is written as alternatives, (4|5|6), not in brackets"
            if "bad character range" in str(error)
            else ""
        )
        raise _wrong(file, index, f"name: {shown(patterns[index])}", f"name {error}{hint}") from error


def _wrong(file: Path, index: int, match: str, problem: str) -> ConfigError:
    told = f" ({match})" if match else ""
    return ConfigError("optimize_config_path", file, f"rule {index}{told}: {problem}")
