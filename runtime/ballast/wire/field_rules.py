"""What happens to each field of a request's body: honoured, without effect here, refused by name, or not known.

A field that a type of `ballast.wire` declares is supported, unless its annotation contains a `NoEffect`. The rules of
the type specify what happens to known fields of other programs; all other fields are unknown.
docs/reference/request-fields.md is generated from this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The field is accepted, with any value, since nothing in the reply would be different."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The field would change the reply and is not supported. Null and `harmless` values ask for nothing, and pass."""

    why: str
    harmless: tuple[Any, ...] = ()

    def objection(self, value: Any) -> str | None:
        """Why this value is refused, and the way out; None if it is harmless."""
        if value is None or any(is_same(value, each) for each in self.harmless):
            return None
        shown = " or ".join(orjson.dumps(each).decode() for each in self.harmless) or "null"
        return f"{self.why}; leave it out or send {shown}"


def is_same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


@dataclass(frozen=True, slots=True)
class Alias:
    """Another dialect's name for a field that is honoured."""

    field: str


Rule = NoEffect | Refused | Alias


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of one kind of object."""

    known: Mapping[str, Shape | None]
    """Honoured ones; with the shape of the objects in them, or None where they are not looked into."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    drops_unknown: bool = False
    """Whether unknown fields are removed from the object, because it is passed on unchanged."""
    only_types: frozenset[str] | None = None
    """Objects of another `type` are not looked into: they are skipped or refused as a whole where they are read."""


@dataclass(frozen=True, slots=True)
class Holds:
    """In a field's annotation: the shape of the objects that it holds, where the type does not say it."""

    shape: Shape


def shape(
    *known: str,
    rules: Mapping[str, Rule] | None = None,
    only_types: Collection[str] | None = None,
    **inner: Shape,
) -> Shape:
    """A Shape of objects that no type describes. `inner`: the fields that hold such objects themselves."""
    types = None if only_types is None else frozenset(only_types)
    return Shape(dict.fromkeys(known) | inner, rules or {}, drops_unknown=True, only_types=types)
