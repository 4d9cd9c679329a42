"""Grammars of calls as keys and values between marks, which `ballast.text.calls.keyed_calls` reads.

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
    yield f"TEXT: /{_ANY_TEXT}/"
    yield "WORD: /[^\\n<]+/"
    yield f"any_pair: {_pair('WORD', 'TEXT', rules)}"
    for n, function in offered:
        schema, strict = function.get("parameters"), bool(function.get("strict"))
        name = quoted(function["name"])
        if not schema or (any_arguments and not strict):
            yield f"call_{n}: {name} (NEWLINE? any_pair)* NEWLINE?"
            continue
        path = f"{param}.{n}.function.parameters"
        pairs = []
        for at, (key, of_value) in enumerate(_properties(schema).items()):
            value = _value(schema, key, of_value, f"{path}.properties.{key}", strict=strict)
            yield f"value_{n}_{at}: {value}"
            yield f"pair_{n}_{at}: NEWLINE? {_pair(quoted(key), f'value_{n}_{at}', rules)}"
            pairs.append(f"pair_{n}_{at}" if key in schema.get("required", ()) else f"pair_{n}_{at}?")
        yield f"call_{n}: {name} {' '.join(pairs)} NEWLINE?"


_ANY_TEXT = r"(?s:.*)"


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _pair(key: str, value: str, rules: Mapping[Mark, str]) -> str:
    return f"{rules[Mark.KEY]} {key} {rules[Mark.END_KEY]} NEWLINE? {rules[Mark.VALUE]} {value} {rules[Mark.END_VALUE]}"


def _value(schema: Mapping[str, Any], key: str, of_value: object, path: str, *, strict: bool) -> str:
    own = of_value if isinstance(of_value, Mapping) else {}
    if STRING not in types_of(schema, key):
        shared = {root: schema[root] for root in _ROOT_KEYS if root in schema}
        return embedded_schema({**shared, **own}, path, strict=strict)
    choices = own.get("enum", [own["const"]] if "const" in own else None)
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(map(quoted, choices))
    if strict and (more := own.keys() - _HELD_OF_STRINGS):
        raise RequestError(
            f"{path}: {min(more)} of a value that may be a string cannot be held in this model's form of calls",
            param=path,
        )
    return "TEXT"
