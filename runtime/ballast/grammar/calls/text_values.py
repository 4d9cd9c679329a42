"""The values of an argument in forms where strings are bare text and other values are JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ballast.errors import RequestError
from ballast.grammar.calls.string_terminals import HELD, terminal
from ballast.grammar.json_rules import ANNOTATIONS, JsonRules
from ballast.text.calls.argument_values import STRING, resolved, type_names

_DEEPEST = 16
_JSON_TEXT = {
    "null": "null",
    "boolean": "true|false",
    "integer": "-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "object": r"\{(?s:.*)\}",
    "array": r"\[(?s:.*)\]",
}


@dataclass(slots=True)
class TextValue:
    """The ways to write one value. With `is_any_text`, the others still apply where text and JSON differ in form."""

    is_any_text: bool = False
    texts: list[str] = field(default_factory=list)
    """Strings that are listed."""
    terminals: list[str] = field(default_factory=list)
    """Expressions of terminals for strings."""
    choices: list[Any] = field(default_factory=list)
    """Other values that are listed."""
    json: list[str] = field(default_factory=list)
    """Expressions for other values."""


def text_value(schema: object, root: Mapping[str, Any], rules: JsonRules, path: str, *, strict: bool) -> TextValue:
    """The value of an argument with `schema`, a part of `root`. `path` names it in errors. Raises RequestError if the
    tool is strict and its strings have a keyword that bare text cannot be held to."""
    found = TextValue()
    _add(found, schema, root, rules, path, strict=strict, depth=_DEEPEST)
    return found


def bare_terminals(value: TextValue, types: frozenset[str]) -> list[str]:
    """Expressions of terminals for the restricted strings of a value of these types, and for its JSON if text does not
    say which of both it is: the lexer takes the longest text, and JSON may end where a string may continue."""
    if not value.terminals or not (value.json or value.choices):
        return value.terminals
    return [*value.terminals, f"/{'|'.join(pattern for name, pattern in _JSON_TEXT.items() if name in types)}/"]


def _add(
    found: TextValue,
    schema: object,
    root: Mapping[str, Any],
    rules: JsonRules,
    path: str,
    *,
    strict: bool,
    depth: int,
) -> None:
    own = resolved(schema, root)
    if strict and "$ref" in own:
        rules.value(own)
    if not own.keys() - ANNOTATIONS or depth == 0 or "$ref" in own:
        found.is_any_text = True
        found.json.append("json")
        return
    kinds = own.get("type")
    allowed = frozenset(each for each in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(each, str))
    if "enum" in own or "const" in own:
        listed = own.get("enum", [own.get("const")])
        for choice in listed if isinstance(listed, list) else []:
            if kinds is None or type_names(choice) & allowed:
                (found.texts if isinstance(choice, str) else found.choices).append(choice)
    elif (parts := rules.alternatives(own)) is not None:
        for part in parts:
            _add(found, part, root, rules, path, strict=strict, depth=depth - 1)
    elif kinds == STRING:
        held = own.keys() - ANNOTATIONS
        expression = terminal(own) if strict and held <= HELD else None
        if strict and expression is None:
            named = min(held - HELD, default="pattern" if "pattern" in held else "format")
            raise RequestError(
                f"{path}: {named} of a value that may be a string cannot be enforced in this model's format of calls",
                param=path,
            )
        if held == {"type"} or expression is None:
            found.is_any_text = True
        else:
            found.terminals.append(expression)
    elif kinds is not None:
        found.json.append(rules.value(own))
    elif strict:
        named = min(own.keys() - ANNOTATIONS)
        raise RequestError(
            f"{path}: {named} of a value that may be a string cannot be enforced in this model's format of calls",
            param=path,
        )
    else:
        found.is_any_text = True
        found.json.append("json")
