"""Examines a body before validation: refuses known fields that are not supported, and notes unknown fields."""

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
    """Convert a JSON object to `kind`; unknown fields at any depth are noted in `ignored`.

    Raises RequestError, with the client's name of the field, for an invalid field, for a known field that is not
    supported, and for an unknown field if the server refuses these."""
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
    """Rename an alias to its field. Raises RequestError if the body has both and they differ."""
    given = value.pop(name)
    if given is None:
        return
    if value.get(field) not in (None, given):
        refuse(f"{path}{name}", f"differs from {field}, which has the same meaning; send one of them")
    value[field] = given


def _objects(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a field: the value itself, or the items of a list. Other values are refused where they are
    read."""
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
    """The request types inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
