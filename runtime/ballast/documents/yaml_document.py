"""Reads a YAML file as plain values.

The library's parser reads the text; values are made from its events here. So every alias counts as often as it is used,
nothing nests deeply, and a tag makes no objects: a few hundred bytes cannot become gigabytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import yaml

from ballast.documents.small_file import DocumentError, read_small
from ballast.errors import shown

MAX_BYTES = 1 << 18
MAX_VALUES = 20_000
MAX_DEPTH = 20
_MAX_NUMBER_CHARS = 40

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

_TAG = "tag:yaml.org,2002:"
_COLLECTIONS = (None, "!", f"{_TAG}seq", f"{_TAG}map")


def read_yaml(file: Path, *, as_written: bool = False) -> Plain:
    """The content of a file that holds one document; None for an empty one. Raises DocumentError.

    `as_written`: scalars other than null stay text, since YAML would make a number of 1.10, 0123 and 22:22, and a
    truth value of `off`.
    """
    data = read_small(file, MAX_BYTES)
    try:
        return _Builder(data, as_written=as_written).document()
    except yaml.YAMLError as error:
        raise DocumentError(f"is not YAML: {' '.join(str(error).split())}") from error


class _Builder:
    """Makes plain values of the parser's events."""

    def __init__(self, data: bytes, *, as_written: bool) -> None:
        self._as_written = as_written
        self._loader = yaml.SafeLoader(data)
        self._num_values = 0
        self._anchors: dict[str, tuple[Plain, int]] = {}
        """A value that was named, and how many values it consists of."""

    def document(self) -> Plain:
        self._next()  # the stream's begin
        if self._loader.check_event(yaml.StreamEndEvent):
            return None
        self._next()  # the document's begin
        value = self._value(0)
        self._next()  # the document's end
        if not self._loader.check_event(yaml.StreamEndEvent):
            raise DocumentError("holds more than one YAML document")
        return value

    def _next(self) -> yaml.Event:
        event: yaml.Event = self._loader.get_event()
        return event

    def _count(self, num_values: int) -> None:
        self._num_values += num_values
        if self._num_values > MAX_VALUES:
            raise DocumentError(f"holds more than {MAX_VALUES} values, with aliases written out")

    def _value(self, depth: int) -> Plain:
        event = self._next()
        if depth > MAX_DEPTH:
            raise DocumentError(f"{_line(event)}: nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise DocumentError(f"{_line(event)}: *{event.anchor} names nothing above it")
            value, size = self._anchors[event.anchor]
            self._count(size)
            return value
        before = self._num_values
        self._count(1)
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        else:
            assert isinstance(event, yaml.CollectionStartEvent)
            if event.tag not in _COLLECTIONS:
                raise DocumentError(f"{_line(event)}: tag {shown(event.tag)} is not known")
            is_list = isinstance(event, yaml.SequenceStartEvent)
            value = self._list(depth + 1) if is_list else self._mapping(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._num_values - before
        return value

    def _list(self, depth: int) -> list[Plain]:
        values = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            values.append(self._value(depth))
        self._next()
        return values

    def _mapping(self, depth: int) -> dict[str, Plain]:
        values: dict[str, Plain] = {}
        merged: list[Plain] = []
        while not self._loader.check_event(yaml.MappingEndEvent):
            event = self._next()
            if not isinstance(event, yaml.ScalarEvent):
                raise DocumentError(f"{_line(event)}: a key that is no text")
            self._count(1)
            key = _checked_text(event)
            if self._tag(event) == f"{_TAG}merge":
                found = self._value(depth)
                merged += found if isinstance(found, list) else [found]
                continue
            if key in values:
                raise DocumentError(f"{shown(key)}: is set twice")
            values[key] = self._value(depth)
        self._next()
        for mapping in merged:
            if not isinstance(mapping, dict):
                raise DocumentError("<<: merges something that is no mapping")
            values = mapping | values
        return values

    def _scalar(self, event: yaml.ScalarEvent) -> Plain:
        text, tag = _checked_text(event), self._tag(event)
        node = yaml.ScalarNode(tag, text)
        try:
            match tag.removeprefix(_TAG):
                case "null":
                    return None
                case "bool" | "int" | "float" if self._as_written:
                    return text
                case "bool":
                    return bool(self._loader.construct_yaml_bool(node))
                case "int" if len(text) <= _MAX_NUMBER_CHARS:
                    return int(self._loader.construct_yaml_int(node))
                case "float" if len(text) <= _MAX_NUMBER_CHARS:
                    return float(self._loader.construct_yaml_float(node))
                case "int" | "float":
                    raise DocumentError(f"{_line(event)}: a number of {len(text)} characters")
                case "str" | "timestamp" | "merge" | "value":
                    return text
        except (ValueError, LookupError) as error:  # a tag that does not go with its text
            raise DocumentError(f"{_line(event)}: {shown(text)} is no {tag.removeprefix(_TAG)}") from error
        raise DocumentError(f"{_line(event)}: tag {shown(tag)} is not known")

    def _tag(self, event: yaml.ScalarEvent) -> str:
        if event.tag not in (None, "!"):
            return str(event.tag)
        return str(self._loader.resolve(yaml.ScalarNode, event.value, event.implicit))


def _checked_text(event: yaml.ScalarEvent) -> str:
    """The text of a scalar. Escapes can write characters that no name, path or pattern has."""
    text = str(event.value)
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise DocumentError(f"{_line(event)}: a text with a NUL or an unpaired surrogate")
    return text


def _line(event: yaml.Event) -> str:
    assert event.start_mark is not None, "events of the parser have their places"
    return f"line {event.start_mark.line + 1}"
