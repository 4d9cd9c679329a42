"""The grammar of calls in tags that each contain a mark, as DeepSeek V3.2 and V4 write them.

A tag says whether its value is a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import Any

from ballast.errors import RequestError, shown
from ballast.families.marks import Mark
from ballast.grammar.calls.functions import functions_of
from ballast.grammar.calls.keyed_calls import other_key, terminals_of
from ballast.grammar.calls.string_terminals import ANY_TEXT
from ballast.grammar.source import quoted
from ballast.text.calls.dsml_calls import LONGEST_KEY, is_key

BEFORE_TAGS = "\n\n<"
"""The text before the mark of the first tag."""
_KEY = '/[^\\n<>"]+/'


def dsml_calls(
    offered: Iterable[tuple[int, Mapping[str, Any]]], rules: Mapping[Mark, str], param: str, *, any_arguments: bool
) -> Iterator[str]:
    """The rules `call_0`, `call_1` … of functions, from the mark of a call's first tag to the line break before its
    last. Raises RequestError as `keyed_calls` does, and for a key that no tag can hold."""
    tag, offered = rules[Mark.TAG], list(offered)

    def pair(key: str, *values: str) -> str:
        head = (
            f"{quoted('<')} {tag} {quoted('parameter name=' + chr(34))} {key} {quoted(chr(34) + ' string=' + chr(34))}"
        )
        return f"{head} ({' | '.join(values)}) {tag} {quoted('parameter>' + chr(10))}"

    def text(rule: str) -> str:
        return f"{quoted('true' + chr(34) + '>')} {rule}"

    def json(rule: str) -> str:
        return f"{quoted('false' + chr(34) + '>')} {rule} {quoted('</')}"

    yield f"TEXT: /{ANY_TEXT}<\\//"  # with the beginning of the closing tag, up to its mark
    for function in functions_of(offered, param, any_arguments=any_arguments):
        yield from function.lines
        pairs = []
        for rule, key, value in function.pairs:
            if not is_key(key):
                path = f"{param}.{function.number}.function.parameters.properties"
                raise RequestError(
                    f"{path}: the key {shown(key)} cannot be enforced in this model's format of calls; use at most "
                    f"{LONGEST_KEY} characters without line breaks and double quotation marks",
                    param=path,
                )
            yield from terminals_of(value.terminals, rule, quoted("</"))
            texts = " | ".join(map(quoted, value.texts))
            others = " | ".join([*(quoted(dumps(each, ensure_ascii=False)) for each in value.choices), *value.json])
            strings = ["TEXT"] if value.is_any_text else [f"{rule.upper()}_{n}" for n in range(len(value.terminals))]
            strings += [f"({texts}) {quoted('</')}"] if texts and not value.is_any_text else []
            values = [*map(text, strings), *([json(f"({others})")] if others else [])]
            yield f"{rule}: {pair(quoted(key), *values)}"
            pairs.append(rule)
        yield from other_key(function, _KEY)
        yield from function.inner(pairs, pair(f"OTHER_{function.number}", text("TEXT"), json("json")))
        head = quoted(f"invoke name={quoted(function.name)}>" + chr(10))
        yield f"call_{function.number}: {head} inner_{function.number} NEWLINE?"
