"""The grammar of calls in tags that are ordinary text, with values directly between their tags: those of MiniMax-M2 and
MiMo-V2.

A value ends at the first `</parameter>` that a tag follows, as in `ballast.text.calls.invoke_calls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ballast.errors import RequestError, shown
from ballast.grammar.calls.functions import functions_of
from ballast.grammar.calls.keyed_calls import listed, other_key
from ballast.grammar.calls.string_terminals import ANY_TEXT
from ballast.grammar.calls.text_values import bare_terminals
from ballast.grammar.source import quoted
from ballast.text.calls.invoke_calls import INVOKE, Spelling
from ballast.text.calls.tags import BLANK, LONGEST_KEY

_KEY = '/[^\\n<>"]+/'
_END = rf"<\/parameter>{BLANK}<"
"""The end of a value, with the beginning of the tag that follows."""


def invoke_calls(
    offered: Iterable[tuple[int, Mapping[str, Any]]],
    param: str,
    *,
    any_arguments: bool,
    spelling: Spelling = INVOKE,
) -> Iterator[str]:
    """The rules `call_0`, `call_1` … of functions, and what these need. Raises RequestError as `keyed_calls` does, and
    for a key that no tag can hold."""

    def pair(key: str, ways: Iterable[str]) -> str:
        return f"{quoted(f'parameter{spelling.before}')} {key} {quoted(spelling.after)} ({' | '.join(ways)})"

    yield f"text_end[lazy]: /(?s:.*){_END}/"
    yield f"END: /{_END}/"
    yield f"BLANK: /{BLANK.replace('{0,', '{1,')}/"
    for function in functions_of(offered, param, any_arguments=any_arguments):
        yield from function.lines
        for rule, key, value in function.pairs:
            if not spelling.is_key(key):
                path = f"{param}.{function.number}.function.parameters.properties"
                raise RequestError(
                    f"{path}: the key {shown(key)} cannot be enforced in this model's format of calls; use 1 to "
                    f"{LONGEST_KEY} characters without line breaks, angle brackets, white space at the ends and, in "
                    "MiniMax's format, double quotation marks",
                    param=path,
                )
            terminals = [] if value.is_any_text else bare_terminals(value, function.parameters.types_of(key))
            for n, expression in enumerate(terminals):
                yield f"{rule}_{n}[lazy]: {rule.upper()}_{n}"
                yield f"{rule.upper()}_{n}: {rule.upper()}_{n}_TEXT /{_END}/"
                yield f"{rule.upper()}_{n}_TEXT: ({expression}) & ~/{ANY_TEXT}{_END}{ANY_TEXT}/"
            others = " | ".join([*listed(value), *value.json])
            ways = ["text_end"] if value.is_any_text else [f"{rule}_{n}" for n in range(len(terminals))]
            if others and not value.is_any_text:
                ways.append(f"({others}) END")
            yield f"{rule}: {pair(quoted(key), ways)}"
        yield from other_key(function, _KEY)
        other = pair(f"OTHER_{function.number}", ["text_end"])
        yield from function.inner((each.rule for each in function.pairs), other)
        head = quoted(f"<{spelling.call}{spelling.before}{function.name}{spelling.after}")
        end = quoted(f"/{spelling.call}>")
        yield f"call_{function.number}: {head} BLANK? {quoted('<')} inner_{function.number} {end}"
