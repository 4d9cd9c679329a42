"""The grammar of calls in tags with a mark in each, as DeepSeek V3.2 writes them.

Keys come in the schema's order. Of a value that may be a string the tag says whether it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ballast.errors import RequestError, shown
from ballast.families.marks import Mark
from ballast.grammar.keyed_calls import ANY, ANY_TEXT, functions_of, value_schema
from ballast.grammar.source import embedded_schema, quoted
from ballast.text.calls.argument_values import STRING, types_of
from ballast.text.calls.dsml_calls import LONGEST_KEY, is_key

BEFORE_TAGS = "\n\n<"
"""What precedes the mark of the first tag."""
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
    yield f"any_json: {embedded_schema({}, param, strict=False)}"
    yield f"any_pair: {pair(_KEY, text('TEXT'), json('any_json'))}"
    schemas = {n: function.get("parameters") for n, function in offered}
    for n, name, pairs in functions_of(offered, param, any_arguments=any_arguments):
        names = []
        for rule, key, value, is_needed in pairs:
            if not is_key(key):
                path = f"{param}.{n}.function.parameters.properties"
                raise RequestError(
                    f"{path}: the key {shown(key)} cannot be held in this model's form of calls; one of at most "
                    f"{LONGEST_KEY} characters can, without line breaks and double quotation marks",
                    param=path,
                )
            types = types_of(schemas[n], key)
            if value is None:
                values = [text("TEXT")]
            elif STRING in types:
                yield f"value_{rule}: {value}"
                values = [text(f"value_{rule} {quoted('</')}")]
            else:
                yield f"value_{rule}: {value}"
                values = [json(f"value_{rule}")]
            if value is None and types != {STRING}:
                yield f"json_{rule}: {value_schema(schemas[n] or {}, key, param, strict=False)}"
                values.append(json(f"json_{rule}"))
            yield f"{rule}: {pair(quoted(key), *values)}"
            names.append(rule if is_needed else f"{rule}?")
        inner = "any_pair*" if pairs is ANY else " ".join(names)
        yield f"call_{n}: {quoted(f'invoke name={quoted(name)}>' + chr(10))} {inner} NEWLINE?"
