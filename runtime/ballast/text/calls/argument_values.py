"""Converts untyped arguments to JSON according to the schema of the tool's parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

STRING = "string"
ANY_TYPE = frozenset({STRING, "number", "integer", "boolean", "null", "object", "array"})
_DEEPEST = 16
"""Limit of nested schemas and of references to references."""
_COMBINED = ("anyOf", "oneOf", "allOf")
_AS_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""How models write these values that learnt from templates which show arguments as Python does."""


def types_of(parameters: Mapping[str, Any] | None, key: str) -> frozenset[str]:
    """The JSON types that the value of `key` may have; all if the schema does not define them."""
    root = parameters if isinstance(parameters, Mapping) else {}
    return _types(schema_of(root, key), root, _DEEPEST) or ANY_TYPE


def types_in(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that `schema`, a part of `root`, allows; all if it does not define them."""
    return _types(schema, root, _DEEPEST) or ANY_TYPE


def schema_of(parameters: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The schema of the value of `key`, with its references resolved; empty where there is none."""
    properties = resolved(parameters, parameters).get("properties")
    return resolved(properties.get(key) if isinstance(properties, Mapping) else None, parameters)


def resolved(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema`, a part of `root`, merged with the schema that it refers to; empty for anything but an object. A
    reference that leads nowhere stays."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        found = referred(schema["$ref"], root)
        if found is True:
            found = {}
        if not isinstance(found, Mapping):
            break
        schema = {**found, **{name: value for name, value in schema.items() if name != "$ref"}}
    return schema if isinstance(schema, Mapping) else {}


def referred(reference: str, root: Mapping[str, Any]) -> object:
    """The part of `root` that a JSON pointer such as `#/$defs/x` names; None for any other reference."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    node: object = root
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(name)
        elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def as_json(text: str, types: frozenset[str]) -> str:
    """The value as JSON text: a string where only that is allowed, else what the text is as JSON where its type is
    allowed, else a string again. Quotation marks are part of a string unless the schema allows every type. Where no
    string is allowed, `True`, `False` and `None` are JSON too."""
    if types != {STRING}:
        bare = text.strip()
        if STRING not in types:
            bare = _AS_PYTHON.get(bare, bare)
        try:
            value = json.loads(bare, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            pass
        else:
            if type_names(value) & types and (not isinstance(value, str) or types == ANY_TYPE):
                return bare
    return json.dumps(text, ensure_ascii=False)


def _types(schema: object, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """Empty where nothing is said."""
    if not isinstance(schema, Mapping) or depth == 0:
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _types(referred(reference, root), root, depth - 1)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & ANY_TYPE
    if isinstance(named, Sequence):
        return frozenset(name for name in named if isinstance(name, str)) & ANY_TYPE
    if "const" in schema:
        return type_names(schema["const"])
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        return frozenset().union(*map(type_names, values))
    for word in _COMBINED:
        parts = schema.get(word)
        if isinstance(parts, Sequence) and not isinstance(parts, str):
            found = [_types(part, root, depth - 1) for part in parts]
            if word == "allOf":
                found = [types for types in found if types]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def type_names(value: object) -> frozenset[str]:
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
