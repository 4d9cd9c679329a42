"""Grammars of calls as keys and bare values between marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import Any

from ballast.families.marks import Mark
from ballast.grammar.functions import Function, functions_of
from ballast.grammar.source import quoted
from ballast.grammar.string_terminals import ANY_TEXT
from ballast.grammar.text_values import TextValue


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
            yield f"{each.rule}: {pair(quoted(each.key), ' | '.join(_ways(each.value, each.rule)))}"
            yield from terminals_of(each.value, each.rule)
        yield from other_key(function)
        other = pair(f"OTHER_{function.number}", "TEXT")
        yield from function.inner((each.rule for each in function.pairs), other)
        yield f"call_{function.number}: {quoted(function.name)} inner_{function.number} NEWLINE?"


WORD = r"/[^<>\s]([^<>\n]{0,254}[^<>\s])?/"
"""A key that is not declared."""


def other_key(function: Function, word: str = WORD) -> Iterator[str]:
    """The rule `OTHER_<number>`: a key that is not declared."""
    declared = " | ".join(quoted(pair.key) for pair in function.pairs)
    yield f"OTHER_{function.number}: {word}" + (f" & ~({declared})" if declared else "")


def terminals_of(value: TextValue, rule: str, end: str = "") -> Iterator[str]:
    """The terminals `<RULE>_0`, `<RULE>_1` … of the strings of a value, with `end` after each."""
    for n, expression in enumerate(value.terminals):
        yield f"{rule.upper()}_{n}: ({expression}) {end}"


def listed(value: TextValue) -> list[str]:
    """Expressions for values that are listed, as bare text."""
    return [quoted(each) for each in value.texts] + [quoted(dumps(each, ensure_ascii=False)) for each in value.choices]


def _ways(value: TextValue, rule: str) -> list[str]:
    if value.is_any_text:
        return ["TEXT"]
    return [*listed(value), *(f"{rule.upper()}_{n}" for n in range(len(value.terminals))), *value.json]
