"""A schema that is not strict never fails: parts that grammars cannot enforce are omitted and reported."""

from __future__ import annotations

from typing import Any

import pytest

from ballast.errors import RequestError
from ballast.grammar import source
from ballast.grammar.compiler import GrammarCompiler
from devkit.models.vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER)
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


def accepts(schema: dict[str, Any], text: str) -> bool:
    matcher = COMPILER.compile(source.json_schema(schema, "p", strict=False)).matcher.deep_copy()
    return all(matcher.consume_token(token) for token in TOKENIZER.encode(text)) and matcher.is_accepting()


def with_property(schema: Any, *, required: tuple[str, ...] = ("n",)) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema, "n": {"const": 1}}, "required": list(required)}


ODD_KEYWORDS: list[dict[str, Any]] = [
    {"type": "string", "pattern": EMAIL},
    {"type": "string", "pattern": "(?<=a)b"},
    {"type": "string", "pattern": "(?<!a)b"},
    {"type": "string", "pattern": r"(a)\1"},
    {"type": "string", "pattern": r"(?<y>a)\k<y>"},
    {"type": "string", "pattern": r"\bword\b"},
    {"type": "string", "pattern": r"\p{No_Such_Class}"},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": 5},
    {"type": "integer", "minimum": "0"},
    {"type": "integer", "minimum": None},
    {"type": "integer", "minimum": [], "maximum": {}},
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"type": "integer", "multipleOf": 0},
    {"type": "number", "minimum": 1e300},
    {"type": "string", "minLength": -1},
    {"type": "string", "maxLength": "5"},
    {"type": "string", "maxLength": 10**15},
    {"type": "string", "format": None},
    {"type": "string", "format": "no-such-format"},
    {"type": "date"},
    {"type": "String"},
    {"type": None},
    {"type": []},
    {"type": ["string", "date"]},
    {"enum": []},
    {"enum": None},
    {"enum": "a"},
    {"anyOf": []},
    {"anyOf": None},
    {"anyOf": [None, {"type": "string"}]},
    {"oneOf": {"type": "string"}},
    {"allOf": [{"type": "string", "pattern": "(?=a)"}, {"type": "number"}]},
    {"type": "array", "items": None},
    {"type": "array", "items": "string"},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "array", "prefixItems": None},
    {"type": "object", "properties": None},
    {"type": "object", "properties": {"x": None}},
    {"type": "object", "properties": {"x": "string"}},
    {"type": "object", "required": None},
    {"type": "object", "required": "x"},
    {"type": "object", "additionalProperties": None},
    {"type": "object", "patternProperties": {"^(?!x)": {}}},
    {"type": "object", "patternProperties": {"^a": {}, "^ab": {}}},
    {"type": "object", "properties": {"x": {}}, "required": ["y"], "additionalProperties": False},
    {"$ref": "#/$defs/missing"},
    {"$ref": "https://example.com/schema.json"},
    {"$ref": None},
    {"$schema": "no-such-draft", "type": "string"},
    {"$id": "::::", "type": "string"},
    {"not": {"type": "string"}},
    {"type": "array", "uniqueItems": True},
]


@pytest.mark.parametrize("odd", ODD_KEYWORDS, ids=str)
def test_unenforceable_keywords_are_reported_and_the_rest_is_enforced(odd: dict[str, Any]) -> None:
    needed = source.json_schema(with_property(odd, required=("a", "n")), "p", strict=False)
    assert needed.left_out
    assert all(path.startswith("p.properties.a.") for path in needed.left_out)
    assert COMPILER.compile(needed).matcher is not None
    schema = with_property(odd)
    assert accepts(schema, '{"n": 1}')
    assert not accepts(schema, '{"n": 2}')
    alone = source.json_schema(odd, "p", strict=False)
    assert COMPILER.compile(alone).matcher is not None
    assert alone.left_out


@pytest.mark.parametrize(
    "odd", [True, False, {}, {"type": "string", "pattern": r"^\p{L}+$"}, {"$comment": None}], ids=str
)
def test_enforceable_keywords_are_not_reported(odd: Any) -> None:
    assert source.json_schema(with_property(odd), "p", strict=False).left_out == ()


@pytest.mark.parametrize("odd", [None, 5, "string", []], ids=str)
def test_a_property_with_an_invalid_schema_accepts_anything(odd: Any) -> None:
    schema = with_property(odd)
    assert source.json_schema(schema, "p", strict=False).left_out == ("p.properties.a",)
    assert accepts(schema, '{"a": [null], "n": 1}')


def test_each_fault_is_reported_with_its_path_and_other_keywords_are_enforced() -> None:
    schema = {
        "type": "object",
        "properties": {
            "mail": {"$ref": "#/$defs/mail"},
            "many": {"type": "array", "items": {"$ref": "#/$defs/either"}},
        },
        "required": ["mail"],
        "additionalProperties": False,
        "$defs": {
            "mail": {"type": "string", "pattern": EMAIL, "maxLength": 4},
            "either": {"anyOf": [{"type": "integer", "minimum": "0", "maximum": 9}, {"$ref": "#/$defs/mail"}]},
        },
    }
    left_out = source.json_schema(schema, "p", strict=False).left_out
    assert sorted(left_out) == ["p.$defs.either.anyOf.0.minimum", "p.$defs.mail.pattern"]
    assert accepts(schema, '{"mail": "abcd", "many": [9, "x"]}')
    assert not accepts(schema, '{"mail": "abcde"}')
    assert not accepts(schema, '{"mail": "a", "many": [10]}')
    assert not accepts(schema, '{"mail": "a", "more": 1}')


def test_omitted_keywords_never_make_the_schema_stricter() -> None:
    closed = {"type": "object", "additionalProperties": False}
    assert accepts({**closed, "patternProperties": {"^(?!x)": {"type": "integer"}}}, '{"y": 1}')
    assert accepts({"type": "array", "items": False, "prefixItems": None}, "[1]")
    assert accepts({"type": ["string", "date"]}, "5")


def test_a_deep_schema_is_enforced_down_to_the_bound() -> None:
    schema: dict[str, Any] = {"const": 1}
    for _ in range(50):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    (path,) = source.json_schema(schema, "p", strict=False).left_out
    assert path.startswith("p.properties.a.properties.a.")
    assert not accepts(schema, '{"a": 1}')
    assert accepts(schema, '{"a":' * 50 + "2" + "}" * 50)


def test_a_schema_full_of_faults_takes_bounded_work() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string", "pattern": EMAIL} for n in range(900)}}
    assert len(source.json_schema(schema, "p", strict=False).left_out) >= 900


def test_a_schema_that_refers_only_to_itself_falls_back_to_any_json() -> None:
    found = source.json_schema({"$ref": "#"}, "p", strict=False)
    assert found.or_else is not None
    assert found.or_else.left_out == ("p",)
    assert COMPILER.compile(found.or_else).matcher is not None


@pytest.mark.parametrize("odd", [each for each in ODD_KEYWORDS if "pattern" in each or "minimum" in each], ids=str)
def test_a_strict_schema_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="cannot be enforced") as refused:
        COMPILER.compile(source.json_schema(with_property(odd) | {"required": ["a"]}, "p", strict=True))
    assert refused.value.param == "p"
