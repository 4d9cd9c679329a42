"""Grammars of calls as keys and bare values between marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import Any

from ballast.families.marks import Mark
from ballast.grammar.calls.functions import Function, functions_of
from ballast.grammar.calls.string_terminals import ANY_TEXT
from ballast.grammar.calls.text_values import TextValue, bare_terminals
from ballast.grammar.source import quoted


def keyed_calls(
    offered: Iterable[tuple[int, Mapping[str, Any]]], rules: Mapping[Mark, str], param: str, *, any_arguments: bool
) -> Iterator[str]:
    """The rules `call_0`, `call_1` … of functions, given with their numbers, and what these need. `rules`: mark → its
    token in the grammar. Raises RequestError as `functions_of` does."""

    def pair(key: str, value: str) -> str:
        begin = f"NEWLINE? {rules[Mark.KEY]} {key} {rules[Mark.END_KEY]} NEWLINE? {rules[Mark.VALUE]}"
        return f"{begin} ({value}) {rules[Mark.END_VALUE]}"

    yield f"TEXT: /{ANY_TEXT}/"
    for function in functions_of(offered, param, any_arguments=any_arguments):
        yield from function.lines
        for each in function.pairs:
            terminals = bare_terminals(each.value, function.parameters.types_of(each.key))
            values = " | ".join(_alternatives(each.value, each.rule, len(terminals)))
            yield f"{each.rule}: {pair(quoted(each.key), values)}"
            yield from terminals_of(terminals, each.rule)
        yield from other_key(function)
        other = pair(f"OTHER_{function.number}", "TEXT")
        yield from function.inner((each.rule for each in function.pairs), other)
        head = f"{quoted(function.name)} {rules.get(Mark.SEPARATOR, '')}"
        yield f"call_{function.number}: {head} inner_{function.number} NEWLINE?"


WORD = r"/[^<>\s]([^<>\n]{0,254}[^<>\s])?/"
"""A key that is not declared."""


def other_key(function: Function, word: str = WORD) -> Iterator[str]:
    """The rule `OTHER_<number>`: a key that is not declared."""
    declared = " | ".join(quoted(pair.key) for pair in function.pairs)
    yield f"OTHER_{function.number}: {word}" + (f" & ~({declared})" if declared else "")


def terminals_of(expressions: Iterable[str], rule: str, end: str = "") -> Iterator[str]:
    """The terminals `<RULE>_0`, `<RULE>_1` … with `end` after each."""
    for n, expression in enumerate(expressions):
        yield f"{rule.upper()}_{n}: ({expression}) {end}"


def listed(value: TextValue) -> list[str]:
    """Expressions for values that are listed, as bare text."""
    return [quoted(each) for each in value.texts] + [quoted(dumps(each, ensure_ascii=False)) for each in value.choices]


def _alternatives(value: TextValue, rule: str, num_terminals: int) -> list[str]:
    if value.is_any_text:
        return ["TEXT"]
    return [*listed(value), *(f"{rule.upper()}_{n}" for n in range(num_terminals)), *value.json]
