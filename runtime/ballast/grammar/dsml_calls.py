"""The grammar of calls in tags with a mark in each, as DeepSeek V3.2 writes them.

Keys come in the schema's order. Of a value that may be a string the tag says whether it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import Any

from ballast.errors import RequestError, shown
from ballast.families.marks import Mark
from ballast.grammar.keyed_calls import ANY_TEXT, choices_of, functions_of, value_schema
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
    schemas = {n: function.get("parameters") or {} for n, function in offered}
    for function in functions_of(offered, param, any_arguments=any_arguments):
        schema = schemas[function.number]
        for rule, key, value, _ in function.pairs:
            if not is_key(key):
                path = f"{param}.{function.number}.function.parameters.properties"
                raise RequestError(
                    f"{path}: the key {shown(key)} cannot be held in this model's form of calls; one of at most "
                    f"{LONGEST_KEY} characters can, without line breaks and double quotation marks",
                    param=path,
                )
            types, choices = types_of(schema, key), choices_of(schema, key)
            texts = [quoted(each) for each in choices if isinstance(each, str)]
            others = [quoted(dumps(each, ensure_ascii=False)) for each in choices if not isinstance(each, str)]
            values = []
            if STRING not in types:
                yield f"value_{rule}: {value}"
                values.append(json(f"value_{rule}"))
            elif not choices:
                values.append(text("TEXT"))
                if types != {STRING}:
                    yield f"json_{rule}: {value_schema(schema, key, param, strict=False)}"
                    values.append(json(f"json_{rule}"))
            else:
                values += [text(f"({' | '.join(texts)}) {quoted('</')}")] if texts else []
                values += [json(f"({' | '.join(others)})")] if others else []
            yield f"{rule}: {pair(quoted(key), *values)}"
        head = quoted(f"invoke name={quoted(function.name)}>" + chr(10))
        yield f"call_{function.number}: {head} {function.inner} NEWLINE?"
