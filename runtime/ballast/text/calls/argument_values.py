"""Turns arguments that are written without types into JSON, by the schema of the tool's parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

STRING = "string"
_ANY = frozenset({STRING, "number", "integer", "boolean", "null", "object", "array"})
_DEEPEST = 16
"""Schemas within schemas that are looked at for a type."""
_COMBINED = ("anyOf", "oneOf", "allOf")


def types_of(parameters: Mapping[str, Any] | None, key: str) -> frozenset[str]:
    """The JSON types that the value of `key` may have; all where the schema does not say."""
    root = parameters if isinstance(parameters, Mapping) else {}
    return _types(schema_of(root, key), root, _DEEPEST) or _ANY


def schema_of(parameters: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What the schema says of the value of `key`, with what it refers to; empty where that is nothing."""
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        found = _referred(schema["$ref"], parameters)
        if not isinstance(found, Mapping):
            break
        schema = {**found, **{name: value for name, value in schema.items() if name != "$ref"}}
    return schema if isinstance(schema, Mapping) else {}


def as_json(text: str, types: frozenset[str]) -> str:
    """The value as JSON text: a string where only that is allowed, else what the text is as JSON where its type is
    allowed, else a string again."""
    if types != {STRING}:
        bare = text.strip()
        try:
            value = json.loads(bare, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            pass
        else:
            if _type_names(value) & types:
                return bare
    return json.dumps(text, ensure_ascii=False)


def _types(schema: object, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """Empty where nothing is said."""
    if not isinstance(schema, Mapping) or depth == 0:
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _types(_referred(reference, root), root, depth - 1)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & _ANY
    if isinstance(named, Sequence):
        return frozenset(name for name in named if isinstance(name, str)) & _ANY
    if "const" in schema:
        return _type_names(schema["const"])
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        return frozenset().union(*map(_type_names, values))
    for word in _COMBINED:
        parts = schema.get(word)
        if isinstance(parts, Sequence) and not isinstance(parts, str):
            found = [_types(part, root, depth - 1) for part in parts]
            if word == "allOf":
                found = [types for types in found if types]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def _referred(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference within the schema leads to; None for any other."""
    node: object = root
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else ("",):
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node


def _type_names(value: object) -> frozenset[str]:
    """The names that the type of a JSON value has."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({STRING})
        case Mapping():
            return frozenset({"object"})
        case _:
            return frozenset({"array"})


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
