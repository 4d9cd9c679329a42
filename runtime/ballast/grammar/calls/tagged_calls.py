"""Grammars of calls in tags that are ordinary text, as Qwen3-Coder writes them.

`ballast.text.calls.tags` defines where a value ends, for these grammars and for the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ballast.errors import RequestError, shown
from ballast.grammar.calls.functions import Function, Pair, functions_of
from ballast.grammar.calls.keyed_calls import WORD, listed
from ballast.grammar.calls.string_terminals import ANY_TEXT
from ballast.grammar.calls.text_values import bare_terminals
from ballast.grammar.source import quoted
from ballast.text.calls.tags import BEFORE_NEXT, BLANK, ENDS_VALUE, LONGEST_KEY, is_key


def tagged_calls(offered: Iterable[tuple[int, Mapping[str, Any]]], param: str, *, any_arguments: bool) -> Iterator[str]:
    """As `keyed_calls`. Raises RequestError as well for a key that no tag can hold."""
    yield f"TEXT: /{ANY_TEXT}/"
    yield f"text_end[lazy]: {_terminal(f'(?s:.+){ENDS_VALUE}')}"
    yield f"BEFORE_NEXT: {_terminal(f'{ANY_TEXT}{BEFORE_NEXT}')}"
    yield f"CLOSE: {_terminal(f'{chr(10)}?</parameter>')}"
    yield f"BLANK: {_terminal(BLANK.replace('{0,', '{1,'))}"
    for function in functions_of(offered, param, any_arguments=any_arguments):
        yield from function.lines
        yield from _inner(function, param, has_unheld_keys=any_arguments)
        head = quoted(f"<function={function.name}>")
        yield f"call_{function.number}: BLANK? {head} BLANK? tags_{function.number}{function.order.none_used}"


def _inner(function: Function, param: str, *, has_unheld_keys: bool) -> Iterator[str]:
    """The rule `tags_<number>`: the tags of arguments in any order, and the function's closing tag."""
    n, order = function.number, function.order
    tags, text, unclosed = f"tags_{n}", f"text_{n}", f"unclosed_{n}"
    ways = [f'("</function>" BLANK?)? {order.all_given}']
    if_unclosed = [f"NEWLINE? {order.all_given}", f'"\\n</function>" BLANK? {order.all_given}']
    after_text = [f"text_end BLANK? {tags}{order.same}", f"TEXT {order.all_given}"]
    for pair in function.pairs:
        if not is_key(pair.key):
            if has_unheld_keys:
                continue
            path = f"{param}.{n}.function.parameters.properties"
            raise RequestError(
                f"{path}: the key {shown(pair.key)} cannot be enforced in this model's format of calls; use at most "
                f"{LONGEST_KEY} characters without line breaks, angle brackets and white space at its ends",
                param=path,
            )
        terminals = bare_terminals(pair.value, function.parameters.types_of(pair.key))
        value = text if pair.value.is_any_text else pair.rule
        after = f"{value}{order.used(pair.key)} {order.is_free(pair.key)}"
        ways.append(f"{quoted(f'<parameter={pair.key}>')} {after}")
        if pair.key in order.tracked:
            yield f"next_{pair.rule}[lazy]: NEXT_{pair.rule.upper()}"
            yield f"NEXT_{pair.rule.upper()}: BEFORE_NEXT {quoted(f'<parameter={pair.key}>')}"
            after_text.append(f"next_{pair.rule} {after}")
            if_unclosed.append(f"{quoted(f'{chr(10)}<parameter={pair.key}>')} {after}")
        if pair.value.is_any_text:
            continue
        yield f"{pair.rule}{order.same}: {' | '.join(_values(pair, function, len(terminals)))}"
        for at, expression in enumerate(terminals):
            yield from _closed_terminal(f"{pair.rule}_{at}", expression)
    if function.takes_others:
        declared = " | ".join(quoted(pair.key) for pair in function.pairs)
        yield f"WORD_{n}: {WORD}" + (f" & ~({declared})" if declared else "")
        yield f'OTHER_{n}: "<parameter=" WORD_{n} ">"'
        ways.append(f"OTHER_{n} {text}{order.same}")
        if function.parameters.takes_others:
            yield f"next_other_{n}[lazy]: NEXT_OTHER_{n}"
            yield f"NEXT_OTHER_{n}: BEFORE_NEXT OTHER_{n}"
            after_text.append(f"next_other_{n} {text}{order.same}")
            yield f'UNCLOSED_OTHER_{n}: "\\n" OTHER_{n}'
            if_unclosed.append(f"UNCLOSED_OTHER_{n} {text}{order.same}")
    yield f"{text}{order.same}: {' | '.join(after_text)}"
    yield f"{tags}{order.same}: {' | '.join(ways)}"
    if any(not pair.value.is_any_text for pair in function.pairs):
        yield f"{unclosed}{order.same}: {' | '.join(if_unclosed)}"


def _values(pair: Pair, function: Function, num_terminals: int) -> Iterator[str]:
    """The ways to write a value that is not any text, and what follows it."""
    n, same = function.number, function.order.same
    if ways := " | ".join([*listed(pair.value), *pair.value.json]):
        yield f"NEWLINE? ({ways}) CLOSE BLANK? tags_{n}{same}"
        yield f"NEWLINE? ({ways}) unclosed_{n}{same}"
    for at in range(num_terminals):
        yield f"{pair.rule}_{at} BLANK? tags_{n}{same}"


def _closed_terminal(rule: str, expression: str) -> Iterator[str]:
    """The rule for a string that `expression` restricts, up to its closing tag. It cannot contain such a tag, nor a
    line that begins with an opening tag. The line breaks next to the tags, which are no part of the value, do not count
    for the restriction either."""
    name = rule.upper()
    yield f"{rule}[lazy]: {name}"
    yield f"{name}: {name}_LINES /\\n<\\/parameter>/ | {name}_LINE /<\\/parameter>/"
    yield f"{name}_LINES: /\\n/ {name}_ANY | {name}_ANY & ~/\\n{ANY_TEXT}/"
    yield f"{name}_LINE: /\\n/ {name}_END | {name}_END & ~/\\n{ANY_TEXT}/"
    yield f"{name}_END: {name}_ANY & ~/{ANY_TEXT}\\n/"
    no_tag = f"~/{ANY_TEXT}<\\/parameter>{ANY_TEXT}/ & ~/({ANY_TEXT}\\n)?<parameter={ANY_TEXT}/"
    yield f"{name}_ANY: ({expression}) & {no_tag}"


def _terminal(pattern: str) -> str:
    return "/" + pattern.replace("/", r"\/").replace("\n", r"\n") + "/"
