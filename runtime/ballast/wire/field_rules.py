"""The handling of each field of a request's body: honoured, without effect, refused or unknown.

A field that a type of `ballast.wire` declares is supported, unless its annotation contains a `NoEffect`. The type's
rules define how known fields of other programs are handled; all other fields are unknown.
docs/reference/request-fields.md is generated from this."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Any value of the field is accepted, because it would not change the reply."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The field would change the reply and is not supported. Null and the `harmless` values do not request anything and
    are accepted."""

    why: str
    harmless: tuple[Any, ...] = ()

    def objection(self, value: Any) -> str | None:
        """Why this value is refused and what to send instead; None if it is harmless."""
        if value is None or any(is_same(value, each) for each in self.harmless):
            return None
        shown = " or ".join(orjson.dumps(each).decode() for each in self.harmless) or "null"
        return f"{self.why}; leave it out or send {shown}"


def is_same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


@dataclass(frozen=True, slots=True)
class Alias:
    """Another API's name of a supported field."""

    field: str


Rule = NoEffect | Refused | Alias


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of one kind of object."""

    known: Mapping[str, Shape | None]
    """Honoured fields → the shape of the objects inside; None if these are not checked."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    drops_unknown: bool = False
    """Whether unknown fields are removed, because the object itself is passed on."""
    only_types: frozenset[str] | None = None
    """Objects of another `type` are not checked here: their reader skips or refuses them as a whole."""


@dataclass(frozen=True, slots=True)
class Holds:
    """In a field's annotation: the shape of the objects in the field, if its type does not define it."""

    shape: Shape


def shape(
    *known: str,
    rules: Mapping[str, Rule] | None = None,
    only_types: Collection[str] | None = None,
    **inner: Shape,
) -> Shape:
    """The Shape of objects without a type. `inner`: the fields that contain such objects."""
    types = None if only_types is None else frozenset(only_types)
    return Shape(dict.fromkeys(known) | inner, rules or {}, drops_unknown=True, only_types=types)
