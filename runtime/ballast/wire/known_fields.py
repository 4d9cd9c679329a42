"""Goes through a body before it is checked: refuses what is known and cannot be, notes what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic.fields import FieldInfo

from ballast.wire.field_names import client_field_names
from ballast.wire.field_rules import Alias, Holds, NoEffect, Refused, Shape
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.parsing import MAX_FIELDS, StrictModel, refuse, validated

Body = TypeVar("Body", bound=StrictModel)


def read_fields(kind: type[Body], value: dict[str, Any], ignored: IgnoredFields) -> Body:
    """A JSON object as `kind`; fields that the server does not know are noted in `ignored`, at any depth.

    Raises RequestError, with the client's name for the field, for one that is wrong, for one that is known and cannot
    be honoured, and where unknown ones are to be refused.
    """
    given = set(value)
    _check(value, shape_of(kind), ignored, "")
    rules = {name: kind.other_fields.get(name) for name in given}
    aliases = {rule.field: name for name, rule in rules.items() if isinstance(rule, Alias)}
    with client_field_names({re.escape(field): name for field, name in aliases.items() if field not in given}):
        return validated(kind, value)


def _check(value: dict[str, Any], shape: Shape, ignored: IgnoredFields, path: str) -> None:
    kind = value.get("type")
    if shape.only_types is not None and isinstance(kind, str) and kind not in shape.only_types:
        return
    unknown = []
    aliases: dict[str, str] = {}
    for name, inner in value.items():
        if name in shape.known:
            inside = shape.known[name]
            if inside is not None:
                for at, each in _objects(inner, f"{path}{name}"):
                    _check(each, inside, ignored, f"{at}.")
            continue
        match shape.rules.get(name):
            case None:
                ignored.unknown(f"{path}{name}")
                unknown.append(name)
            case Refused() as rule:
                if (objection := rule.objection(inner)) is not None:
                    refuse(f"{path}{name}", objection)
            case Alias(field):
                aliases[name] = field
            case NoEffect():
                pass
    for name, field in aliases.items():
        _rename(value, name, field, path)
    if shape.drops_unknown or len(value) > MAX_FIELDS:
        for name in unknown:
            del value[name]


def _rename(value: dict[str, Any], name: str, field: str, path: str) -> None:
    """Give a field the name under which it is read. Raises RequestError if it is there under both, and they differ."""
    given = value.pop(name)
    if given is None:
        return
    if value.get(field) not in (None, given):
        refuse(f"{path}{name}", f"says something else than {field}, which means the same")
    value[field] = given


def _objects(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects that a field holds: itself, or the items of its list. Others are refused where they are read."""
    if isinstance(value, dict):
        yield path, value
    elif isinstance(value, list):
        for n, item in enumerate(value):
            if isinstance(item, dict):
                yield f"{path}.{n}", item


@cache
def shape_of(kind: type[StrictModel]) -> Shape:
    """The fields that a type declares, with its rules. A rule takes precedence over an inherited field."""
    return Shape(
        {
            info.alias or name: _inside(info)
            for name, info in kind.model_fields.items()
            if name not in kind.other_fields
        },
        kind.other_fields,
    )


def _inside(info: FieldInfo) -> Shape | None:
    held = next((each.shape for each in info.metadata if isinstance(each, Holds)), None)
    if held is not None:
        return held
    shapes = [shape_of(kind) for kind in _models(info.annotation)]
    if not shapes:
        return None
    known: dict[str, Shape | None] = {}
    rules: Mapping[str, Any] = {}
    for each in shapes:
        known |= each.known
        rules = {**rules, **each.rules}
    return Shape(known, rules)


def _models(annotation: Any) -> Iterator[type[StrictModel]]:
    """The types of ours inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
