"""Conversion of a bare value to JSON, according to the schema of a tool's parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballast.text.calls.argument_values import as_json, types_of

ANY = {"string", "number", "integer", "boolean", "null", "object", "array"}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": ["a", 1]}, {"string", "integer", "number"}),
        ({"const": None}, {"null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "string"}, {}]}, ANY),
        ({"allOf": [{"type": "object"}, {"description": "d"}]}, {"object"}),
        ({"$ref": "#/$defs/a~1b"}, {"boolean"}),
        ({"$ref": "#/$defs/loop"}, ANY),
        ({"$ref": "elsewhere"}, ANY),
        ({"type": "no such"}, ANY),
        ({"type": 7, "enum": "ab"}, ANY),
        ({}, ANY),
        (None, ANY),
    ],
)
def test_a_value_has_the_types_of_its_schema(schema: Any, types: set[str]) -> None:
    definitions = {"a/b": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}
    assert types_of({"properties": {"k": schema}, "$defs": definitions}, "k") == types
    assert types_of({"properties": {"other": schema}}, "k") == ANY
    assert types_of({"properties": 7}, "k") == types_of(None, "k") == ANY


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("3", {"string"}, "3"),
        ("3", {"integer"}, 3),
        ("3.0", {"integer"}, 3.0),
        ("3.5", {"integer"}, "3.5"),
        (" [1]\n", {"array"}, [1]),
        ("true", {"string", "boolean"}, True),
        ("true", {"string", "integer"}, "true"),
        ("True", {"boolean"}, True),
        (" False\n", {"boolean", "null"}, False),
        ("None", {"integer", "null"}, None),
        ("None", {"boolean"}, "None"),
        ("None", {"string", "null"}, "None"),
        ("True", ANY, "True"),
        ("", {"integer"}, ""),
        ("Infinity", ANY, "Infinity"),
        ("[" * 100_000, ANY, "[" * 100_000),
        ('"a"', ANY, "a"),
        ('"a"', {"string"}, '"a"'),
    ],
)
def test_a_value_is_converted_to_an_allowed_type(text: str, types: set[str], value: Any) -> None:
    assert json.loads(as_json(text, frozenset(types))) == value
