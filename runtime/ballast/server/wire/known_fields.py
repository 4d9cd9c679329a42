"""Goes through a body before it is checked: refuses what is known and cannot be, notes what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from ballast.server.wire.field_rules import Holds, NoEffect, Refused, Shape
from ballast.server.wire.ignored_fields import IgnoredFields
from ballast.server.wire.parsing import StrictModel, refuse


def check_fields(value: dict[str, Any], kind: type[StrictModel], ignored: IgnoredFields) -> None:
    """Note the fields of a body of this kind that the server does not know, at any depth.

    Raises RequestError for one whose value it knows and cannot honour, and where unknown ones are to be refused.
    """
    _check(value, shape_of(kind), ignored, "")


def _check(value: dict[str, Any], shape: Shape, ignored: IgnoredFields, path: str) -> None:
    unknown = []
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
            case NoEffect():
                pass
    if shape.drops_unknown:
        for name in unknown:
            del value[name]


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
    """The fields that a type declares, with the rules beside it."""
    return Shape(
        {info.alias or name: _inside(info) for name, info in kind.model_fields.items()},
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
