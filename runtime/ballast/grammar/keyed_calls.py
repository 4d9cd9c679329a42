"""Grammars of calls as keys and bare values, between marks or in tags.

Keys come in the schema's order. A value that may be a string is any text, one that may not is JSON: what the string
is to match (a pattern, a length) cannot be held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ballast.errors import RequestError
from ballast.families.marks import Mark
from ballast.grammar.source import embedded_schema, quoted
from ballast.text.calls.argument_values import STRING, types_of

_ROOT_KEYS = ("$defs", "definitions")
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
    for n, name, pairs in functions_of(offered, param, any_arguments=any_arguments):
        names = []
        for pair_name, key, value, is_needed in pairs:
            yield f"value_{pair_name}: {value or 'TEXT'}"
            yield f"{pair_name}: {pair(quoted(key), f'value_{pair_name}')}"
            names.append(pair_name if is_needed else f"{pair_name}?")
        yield f"call_{n}: {quoted(name)} {'any_pair*' if pairs is ANY else ' '.join(names)} NEWLINE?"


def tagged_calls(offered: Iterable[tuple[int, Mapping[str, Any]]], param: str, *, any_arguments: bool) -> Iterator[str]:
    """As `keyed_calls`, with tags that are spelled out."""
    closes = quoted("\n</parameter>\n")
    yield f"text[suffix={closes}]: /{ANY_TEXT}/"
    yield f"any_pair: {quoted('<parameter=')} {_WORD} {quoted('>' + chr(10))} text"
    for n, name, pairs in functions_of(offered, param, any_arguments=any_arguments):
        names = []
        for pair_name, key, value, is_needed in pairs:
            ends = "text" if value is None else f"value_{pair_name} {closes}"
            if value is not None:
                yield f"value_{pair_name}: {value}"
            yield f"{pair_name}: {quoted(f'<parameter={key}>' + chr(10))} {ends}"
            names.append(pair_name if is_needed else f"{pair_name}?")
        head, inner = quoted(f"<function={name}>\n"), "any_pair*" if pairs is ANY else " ".join(names)
        yield f"call_{n}: NEWLINE? {head} {inner} {quoted('</function>')} NEWLINE?"


ANY_TEXT = r"(?s:.*)"
_WORD = "/[^\\n<>]+/"
Pair = tuple[str, str, str | None, bool]
"""The rule's name, the key, what the value follows (None: any text), and whether the pair is needed."""
ANY: list[Pair] = []
"""Of functions whose arguments may be any."""


def functions_of(
    offered: Iterable[tuple[int, Mapping[str, Any]]], param: str, *, any_arguments: bool
) -> Iterator[tuple[int, str, list[Pair]]]:
    for n, function in offered:
        schema, strict = function.get("parameters"), bool(function.get("strict"))
        if not schema or (any_arguments and not strict):
            yield n, function["name"], ANY
            continue
        path, needed = f"{param}.{n}.function.parameters", schema.get("required", ())
        pairs = [
            (f"pair_{n}_{at}", key, _value(schema, key, own, f"{path}.properties.{key}", strict=strict), key in needed)
            for at, (key, own) in enumerate(_properties(schema).items())
        ]
        yield n, function["name"], pairs


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def value_schema(schema: Mapping[str, Any], key: str, path: str, *, strict: bool) -> str:
    """The value of `key` as JSON, as part of a grammar."""
    own = _properties(schema).get(key)
    shared = {root: schema[root] for root in _ROOT_KEYS if root in schema}
    return embedded_schema({**shared, **(own if isinstance(own, Mapping) else {})}, path, strict=strict)


def _value(schema: Mapping[str, Any], key: str, of_value: object, path: str, *, strict: bool) -> str | None:
    own = of_value if isinstance(of_value, Mapping) else {}
    if STRING not in types_of(schema, key):
        return value_schema(schema, key, path, strict=strict)
    choices = own.get("enum", [own["const"]] if "const" in own else None)
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(map(quoted, choices))
    if strict and (more := own.keys() - _HELD_OF_STRINGS):
        raise RequestError(
            f"{path}: {min(more)} of a value that may be a string cannot be held in this model's form of calls",
            param=path,
        )
    return None
