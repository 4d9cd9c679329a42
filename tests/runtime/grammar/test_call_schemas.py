"""Calls of tools whose schemas restrict arguments, in every form.

Valid values are allowed and parsed. Others are rejected.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ballast.errors import RequestError
from devkit.models.call_forms import FORMS, tool

STRING, NULL, INTEGER = {"type": "string"}, {"type": "null"}, {"type": "integer"}
CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "optional string": ({"anyOf": [STRING, NULL]}, ["a", "", None, '"quoted"'], []),
    "optional string as a list of types": ({"type": ["string", "null"]}, ["a", None], []),
    "string or integer": ({"oneOf": [STRING, INTEGER]}, ["a b", 12], []),
    "string or object": ({"anyOf": [STRING, {"type": "object"}]}, ["a", {"b": [1, {"c": None}]}], []),
    "list": ({"enum": ["c", "f", 3]}, ["c", 3], ["k"]),
    "optional list": ({"anyOf": [{"enum": ["c", "f"], "type": "string"}, NULL]}, ["c", None], ["k", 3]),
    "list with null": ({"enum": ["c", None]}, ["c", None], ["k"]),
    "reference in allOf": ({"allOf": [{"$ref": "#/$defs/unit"}], "default": "c"}, ["c"], ["k"]),
    "constant": ({"const": "only"}, ["only"], ["other"]),
    "pattern": ({**STRING, "pattern": "^[0-9]{4}/[a-z]+$"}, ["2026/may"], ["2026", "x2026/may", "2026/may."]),
    "pattern without anchors": ({**STRING, "pattern": "b|^a"}, ["abc", "xby", "a"], ["xa"]),
    "pattern of slashes and lines": (
        {**STRING, "pattern": r"^(https?:\/\/|/)[^\s$^]+$"},
        ["/x", "https://é"],
        ["x", "/ "],
    ),
    "lengths": ({**STRING, "minLength": 2, "maxLength": 4}, ["ab", "a\nb", "é👍"], ["a", "abcde"]),
    "least length": ({**STRING, "minLength": 1}, ["a", "a\nb\n"], [""]),
    "optional pattern": ({"anyOf": [{**STRING, "pattern": "^a+$"}, NULL]}, ["aa", None], ["b"]),
    "pattern and length": ({**STRING, "pattern": "^a", "maxLength": 3}, ["abc"], ["abcd", "b"]),
    "long string or others": (
        {"anyOf": [{**STRING, "minLength": 5}, INTEGER, NULL, {"type": "array", "items": INTEGER}]},
        ["abcde", 12, None, [1]],
        ["abc"],
    ),
    "short string or object": (
        {"anyOf": [{**STRING, "maxLength": 2}, {"type": "object"}]},
        ["ab", {"b": "c"}],
        ["abc"],
    ),
    "date": ({**STRING, "format": "date"}, ["2026-11-27"], ["2026-13-01", "today"]),
    "time and zone": (
        {**STRING, "format": "date-time"},
        ["2026-11-27T21:02:02.5Z", "2026-11-27T21:02:02+01:00"],
        ["2026-11-27"],
    ),
    "mail": ({**STRING, "format": "email"}, ["a.b+c@example.org"], ["a@", "a b@example.org"]),
    "uuid": ({**STRING, "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
    "address": ({**STRING, "format": "uri"}, ["https://example.org/a?b=c#d"], ["no address"]),
    "numbers of hosts": ({**STRING, "format": "ipv4"}, ["127.0.0.1"], ["256.0.0.1", "1.2.3"]),
    "longer numbers of hosts": ({**STRING, "format": "ipv6"}, ["::1", "2001:db8::8a2e:370:7334"], ["1:2", ":::"]),
    "range": ({**INTEGER, "minimum": 1, "maximum": 10}, [1, 10], [0, 11, 1.5]),
    "open range": ({"type": "number", "exclusiveMinimum": 0}, [0.5, 3], [-1]),
    "optional range": ({"anyOf": [{**INTEGER, "minimum": 1}, NULL]}, [1, None], [0]),
    "array": (
        {"type": "array", "items": STRING, "minItems": 1, "maxItems": 2},
        [["a"], ["a", "b"]],
        [[], ["a", "b", "c"], [1]],
    ),
}


def schema_of(value: Any, **others: Any) -> dict[str, Any]:
    properties = {"k": value, **others}
    return {
        "type": "object",
        "properties": properties,
        "required": ["k"],
        "additionalProperties": False,
        "$defs": {"unit": {"enum": ["c", "f"]}},
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_a_strict_tool_gets_exactly_what_its_schema_allows(form: str, case: str) -> None:
    value, good, bad = CASES[case]
    one, tools = FORMS[form], tool(schema_of(value), strict=True)
    for each in good:
        text = one.write("f", {"k": each})
        assert one.refused_at(tools, text) is None, each
        message = one.read(tools, [text])
        assert (message.content, [json.loads(call.arguments) for call in message.calls]) == ("", [{"k": each}])
    for each in bad:
        assert one.refused_at(tools, one.write("f", {"k": each})) is not None, each


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_a_tool_that_is_not_strict_gets_at_least_what_its_schema_allows(form: str, case: str) -> None:
    value, good, _ = CASES[case]
    one, tools = FORMS[form], tool(schema_of(value))
    for each in good:
        text = one.write("f", {"k": each})
        assert one.refused_at(tools, text) is None, each
        assert json.loads(one.read(tools, [text]).calls[0].arguments) == {"k": each}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("right", "wrong"), [("2]", "2,]"), ("[1", "[,1"), ("7}", "7,}"), ("7}", "7 8}")])
def test_a_value_without_a_schema_is_json(form: str, right: str, wrong: str) -> None:
    one, tools = FORMS[form], tool(schema_of({"type": "object"}), strict=False)
    text = one.write("f", {"k": {"a": [1, 2], "b": {"c": 7}}})
    assert one.refused_at(tools, text) is None
    assert right in text
    assert one.refused_at(tools, text.replace(right, wrong, 1)) is not None


REFERENCES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "the whole": ({"type": "array", "items": {"$ref": "#"}}, [{"k": [{"k": []}]}], [[]]),
    "a definition": ({"$ref": "#/$defs/unit"}, "c", "k"),
    "another property": ({"$ref": "#/properties/other/items"}, 3, "a"),
    "an alternative": ({"$ref": "#/properties/choice/anyOf/1"}, {"a": 1}, {"a": "b"}),
    "a name with signs": ({"$ref": "#/properties/a~1b%20c"}, True, 3),
    "itself, in itself": ({"$ref": "#/properties/tree"}, {"next": {"next": None}}, {"next": 3}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", REFERENCES)
def test_a_reference_may_point_to_any_part_of_the_tools_schema(form: str, case: str, *, strict: bool) -> None:
    value, good, bad = REFERENCES[case]
    tree = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/properties/tree"}, NULL]}},
        "required": ["next"],
        "additionalProperties": False,
    }
    schema = schema_of(
        value,
        other={"type": "array", "items": INTEGER},
        choice={"anyOf": [NULL, {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": False}]},
        tree=tree,
        **{"a/b c": {"type": "boolean"}},
    )
    one, tools = FORMS[form], tool(schema, strict=strict)
    text = one.write("f", {"k": good})
    assert one.refused_at(tools, text) is None
    assert json.loads(one.read(tools, [text]).calls[0].arguments) == {"k": good}
    assert one.refused_at(tools, one.write("f", {"k": bad})) is not None


@pytest.mark.parametrize("form", FORMS)
def test_a_schema_that_is_only_a_reference_is_resolved(form: str) -> None:
    schema = {"$ref": "#/$defs/f", "$defs": {"f": schema_of({"type": "array", "items": {"$ref": "#/$defs/f"}})}}
    one, tools = FORMS[form], tool(schema, strict=True)
    assert one.refused_at(tools, one.write("f", {"k": [{"k": []}]})) is None
    assert one.refused_at(tools, one.write("f", {"k": [[]]})) is not None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reference", ["#/$defs/none", "https://example.com/schema", "#/$defs/loop"])
def test_a_dangling_reference_is_rejected_only_for_a_strict_tool(form: str, reference: str) -> None:
    schema = schema_of({"$ref": reference})
    schema["$defs"]["loop"] = {"$ref": "#/$defs/loop"}
    one = FORMS[form]
    with pytest.raises(
        RequestError, match=rf"tools\.0\.function\.parameters: .* {re.escape(reference)} does not exist in"
    ):
        one.start(tool(schema, strict=True))
    assert one.refused_at(tool(schema), one.write("f", {"k": [1]})) is None


MALFORMED = [{"type": []}, {"type": [[]]}, {"type": [{}]}, {"type": {}}, {"type": "string", "format": {}}]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", MALFORMED, ids=str)
def test_a_keyword_with_a_value_of_the_wrong_type_never_fails_the_server(form: str, value: dict[str, Any]) -> None:
    one, schema = FORMS[form], schema_of({**STRING}, malformed=value)
    assert one.refused_at(tool(schema), one.write("f", {"k": "a"})) is None
    with pytest.raises(RequestError):
        one.start(tool(schema_of(value), strict=True))


READ = {
    "type": "object",
    "properties": {"end_line": INTEGER, "path": STRING, "start_line": INTEGER},
    "required": ["path"],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strict", [True, False])
def test_each_declared_key_occurs_at_most_once_and_required_keys_occur(form: str, *, strict: bool) -> None:
    one, tools = FORMS[form], tool(READ, strict=strict)
    for values in ({"path": "a", "start_line": 1, "end_line": 2}, {"start_line": 1, "path": "a"}, {"path": "a"}):
        text = one.write("f", values)
        assert one.refused_at(tools, text) is None
        assert json.loads(one.read(tools, [text]).calls[0].arguments) == values
    assert one.refused_at(tools, one.write("f", {"start_line": 1})) is not None
    twice = one.write("f", {"start_line": 1, "path": "a", "start_lin3": 2}).replace("start_lin3", "start_line")
    assert one.refused_at(tools, twice) is not None


@pytest.mark.parametrize("form", FORMS)
def test_keys_beyond_the_tracked_number_may_have_any_order(form: str) -> None:
    names = [f"k{n}" for n in range(100)]
    schema = {"type": "object", "properties": dict.fromkeys(names, INTEGER), "required": ["k70", "k99"]}
    one, tools = FORMS[form], tool(schema)
    values = dict.fromkeys(reversed(names), 1)
    assert one.refused_at(tools, one.write("f", values)) is None
    assert one.refused_at(tools, one.write("f", {"k70": 1, "k3": 2})) is not None


@pytest.mark.parametrize("form", FORMS)
def test_a_strict_keyword_that_no_form_can_enforce_is_rejected_by_name(form: str) -> None:
    with pytest.raises(RequestError, match=r"pattern|look-around"):
        FORMS[form].start(tool(schema_of({**STRING, "pattern": "(?=a)b"}), strict=True))


NOT_ONLY_OBJECTS: list[dict[str, Any]] = [
    {"type": ["object", "null"]},
    {"type": None},
    {"anyOf": [{"type": "object"}, STRING, NULL]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": ["string", "object"]}}},
    {"$ref": "#/$defs/none"},
    {"$ref": "#"},
]


@pytest.mark.parametrize("form", [name for name, one in FORMS.items() if '{"k": 1}' in one.write("f", {"k": 1})])
@pytest.mark.parametrize("schema", NOT_ONLY_OBJECTS, ids=str)
def test_arguments_are_an_object_whatever_else_the_schema_allows(form: str, schema: dict[str, Any]) -> None:
    one, tools = FORMS[form], tool(schema)
    text = one.write("f", {"k": 1})
    assert one.refused_at(tools, text) is None
    for other in ("null", '"a"', "7", "[]"):
        assert one.refused_at(tools, text.replace('{"k": 1}', other)) is not None
