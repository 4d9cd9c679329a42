"""Grammars of calls as keys and bare values, between marks or in tags.

Keys come in the schema's order. A value that may be a string is any text, one that may not is JSON: what the string
is to match (a pattern, a length) cannot be held.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ballast.errors import RequestError
from ballast.families.marks import Mark
from ballast.grammar.source import embedded_schema, quoted
from ballast.text.calls.argument_values import STRING, schema_of, types_of

_ROOT_KEYS = ("$defs", "definitions")
_OTHER_RULES = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})
"""What may let a call have arguments that `properties` does not list."""
_HELD_OF_STRINGS = frozenset({"type", "title", "description", "default", "enum", "const", "examples", "$comment"})


def keyed_calls(
    offered: Iterable[tuple[int, Mapping[str, Any]]], rules: Mapping[Mark, str], param: str, *, any_arguments: bool
) -> Iterator[str]:
    """The rules `call_0`, `call_1` … of functions, given with their numbers, and what these need. `rules`: mark → its
    token in the grammar. Raises RequestError for a strict function whose strings have to match what cannot be held."""

    def pair(key: str, value: str) -> str:
        begin = f"NEWLINE? {rules[Mark.KEY]} {key} {rules[Mark.END_KEY]} NEWLINE? {rules[Mark.VALUE]}"
        return f"{begin} {value} {rules[Mark.END_VALUE]}"

    yield f"TEXT: /{ANY_TEXT}/"
    yield f"any_pair: {pair(_WORD, 'TEXT')}"
    for function in functions_of(offered, param, any_arguments=any_arguments):
        for each in function.pairs:
            yield f"value_{each.rule}: {each.value or 'TEXT'}"
            yield f"{each.rule}: {pair(quoted(each.key), f'value_{each.rule}')}"
        yield f"call_{function.number}: {quoted(function.name)} {function.inner} NEWLINE?"


def tagged_calls(offered: Iterable[tuple[int, Mapping[str, Any]]], param: str, *, any_arguments: bool) -> Iterator[str]:
    """As `keyed_calls`, with tags that are spelled out."""
    closes = quoted("\n</parameter>\n")
    yield f"text[suffix={closes}]: /{ANY_TEXT}/"
    yield f"any_pair: {quoted('<parameter=')} {_WORD} {quoted('>' + chr(10))} text"
    for function in functions_of(offered, param, any_arguments=any_arguments):
        for each in function.pairs:
            if each.value is not None:
                yield f"value_{each.rule}: {each.value}"
            ends = "text" if each.value is None else f"value_{each.rule} {closes}"
            yield f"{each.rule}: {quoted(f'<parameter={each.key}>' + chr(10))} {ends}"
        head = quoted(f"<function={function.name}>\n")
        yield f"call_{function.number}: NEWLINE? {head} {function.inner} {quoted('</function>')} NEWLINE?"


ANY_TEXT = r"(?s:.*)"
_WORD = "/[^\\n<>]+/"


class Pair(NamedTuple):
    """A key and its value."""

    rule: str
    key: str
    value: str | None
    """What it follows; None: any text."""
    is_needed: bool


class Function(NamedTuple):
    """What a call of one function holds."""

    number: int
    name: str
    pairs: list[Pair]
    takes_others: bool
    """Whether any other pairs may follow."""

    @property
    def inner(self) -> str:
        """The pairs, as a rule names them."""
        names = [pair.rule if pair.is_needed else f"{pair.rule}?" for pair in self.pairs]
        return " ".join([*names, *(["any_pair*"] if self.takes_others else [])])


def functions_of(
    offered: Iterable[tuple[int, Mapping[str, Any]]], param: str, *, any_arguments: bool
) -> Iterator[Function]:
    """The functions that are given with their numbers. Raises RequestError as `keyed_calls` does, and for a schema
    whose `properties` or `required` cannot be read."""
    for n, function in offered:
        schema, strict = function.get("parameters"), bool(function.get("strict"))
        if not schema or (any_arguments and not strict):
            yield Function(n, function["name"], [], takes_others=True)
            continue
        path = f"{param}.{n}.function.parameters"
        properties, needed = schema.get("properties", {}), schema.get("required", [])
        for part, found, kind, expected in (
            ("properties", properties, Mapping, "an object"),
            ("required", needed, list, "a list"),
        ):
            if not isinstance(found, kind):
                raise RequestError(f"{path}.{part} must be {expected}", param=f"{path}.{part}")
        keys = [*properties, *(key for key in needed if isinstance(key, str) and key not in properties)]
        pairs = [
            Pair(f"pair_{n}_{at}", key, _value(schema, key, f"{path}.properties.{key}", strict=strict), key in needed)
            for at, key in enumerate(keys)
        ]
        yield Function(n, function["name"], pairs, _takes_others(schema, path, strict=strict))


def value_schema(schema: Mapping[str, Any], key: str, path: str, *, strict: bool) -> str:
    """The value of `key` as JSON, as part of a grammar."""
    own = schema.get("properties", {}).get(key)
    shared = {root: schema[root] for root in _ROOT_KEYS if root in schema}
    return embedded_schema({**shared, **(own if isinstance(own, Mapping) else {})}, path, strict=strict)


def choices_of(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The values that the schema lists for `key`; empty where it lists none."""
    own = schema_of(schema, key)
    choices = own.get("enum", [own["const"]] if "const" in own else None)
    return choices if isinstance(choices, list) else []


def _value(schema: Mapping[str, Any], key: str, path: str, *, strict: bool) -> str | None:
    if STRING not in types_of(schema, key):
        return value_schema(schema, key, path, strict=strict)
    if choices := choices_of(schema, key):
        return " | ".join(
            quoted(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)) for each in choices
        )
    if strict and (more := schema_of(schema, key).keys() - _HELD_OF_STRINGS):
        raise RequestError(
            f"{path}: {min(more)} of a value that may be a string cannot be held in this model's form of calls",
            param=path,
        )
    return None


def _takes_others(schema: Mapping[str, Any], path: str, *, strict: bool) -> bool:
    others, rules = schema.get("additionalProperties"), schema.keys() & _OTHER_RULES
    is_listed = "properties" in schema
    if strict and (rules or (others and others is not True and not is_listed)):
        named = min(rules, default="additionalProperties")
        raise RequestError(f"{path}: {named} cannot be held in this model's form of calls", param=path)
    if not is_listed:
        return others is not False
    return not strict and (bool(rules) or others is True or isinstance(others, Mapping))
