"""Grammars as text in llguidance's language, made from the fields that request a reply's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from llguidance import LLMatcher

from ballast.errors import RequestError, shown
from ballast.grammar.enforceable_schema import MAX_SCHEMA_DEPTH, enforceable
from ballast.grammar.gbnf import is_lark, lark_of

MAX_SCHEMA_BYTES = 1 << 17
MAX_PROPERTIES = 1000
MAX_ENUM_VALUES = 5000
MAX_PATTERN_CHARS = 1024
MAX_GRAMMAR_CHARS = 1 << 14

# White space between JSON's tokens. Limited, because a model could otherwise write blanks forever.
WHITESPACE = r"[ \t\n\r]{1,20}"


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar that is not compiled yet. `param` is the request's field that it comes from."""

    param: str
    text: str
    left_out: tuple[str, ...] = ()
    """Parts of the request's field that the grammar does not enforce."""
    or_else: Source | None = None
    """The grammar to use if this one is too large or matches no text."""


def json_object(param: str) -> Source:
    """Any JSON object."""
    return json_schema({"type": "object"}, param, strict=True)


def json_schema(schema: Mapping[str, Any], param: str, *, strict: bool) -> Source:
    """JSON that follows `schema`. Raises RequestError for a schema that is too large.

    A part of the schema that llguidance cannot enforce is refused when the grammar is compiled if `strict`, and left
    out otherwise.
    """
    check_size(schema, param, strict=strict)
    if strict:
        return _json_source(schema, param, strict=True)
    found = enforceable(schema)
    weakest = _json_source({"type": "object"} if schema.get("type") == "object" else {}, param, strict=False)
    return replace(
        _json_source(found.schema, param, strict=False),
        left_out=tuple(f"{param}{path}" for path in found.left_out),
        or_else=replace(weakest, left_out=(param,)),
    )


def regex(pattern: str, param: str) -> Source:
    """Text that matches `pattern` as a whole."""
    return Source(param, LLMatcher.grammar_from_regex(pattern))


def choice(texts: Sequence[str], param: str) -> Source:
    """One of `texts`."""
    alternatives = " | ".join(map(quoted, texts))
    return Source(param, LLMatcher.grammar_from_lark(f"start: {alternatives}"))


def lark(text: str, param: str) -> Source:
    """A grammar in llguidance's variant of Lark."""
    return Source(param, LLMatcher.grammar_from_lark(text))


def grammar(text: str, param: str) -> Source:
    """A client's grammar: Lark where a line begins with `start:` or `%llguidance`, else GBNF or EBNF of the form that
    llama.cpp and XGrammar read (`root ::= …`). Raises RequestError for one that is too long or cannot be read."""
    if len(text) > MAX_GRAMMAR_CHARS:
        raise RequestError(
            f"{param}: the grammar has {len(text)} characters; at most {MAX_GRAMMAR_CHARS} are allowed", param=param
        )
    try:
        return lark(text if is_lark(text) else lark_of(text), param)
    except RecursionError:
        raise RequestError(f"{param}: the grammar is nested too deeply", param=param) from None
    except Exception as error:  # noqa: BLE001  the reader raises what it likes
        raise RequestError(f"{param}: the grammar cannot be read: {shown(str(error), 200)}", param=param) from None


def embedded_schema(schema: Mapping[str, Any], param: str, *, strict: bool, blanks: bool = True) -> str:
    """A schema as part of a Lark grammar. `strict` and errors are as those of `json_schema`. Without `blanks` there is
    no white space between JSON's tokens; alternatives of text and JSON need that, since llguidance sees the tokens of
    only one of them otherwise."""
    check_size(schema, param, strict=strict)
    held = schema if strict else enforceable(schema).schema
    return f"%json {_with_options(held, strict=strict, blanks=blanks)}"


def quoted(text: str) -> str:
    """A Lark string literal."""
    return orjson.dumps(text).decode()


def _json_source(schema: Mapping[str, Any], param: str, *, strict: bool) -> Source:
    return Source(param, LLMatcher.grammar_from_json_schema(_with_options(schema, strict=strict)))


def _with_options(schema: Mapping[str, Any], *, strict: bool, blanks: bool = True) -> str:
    white_space = {"whitespace_pattern": WHITESPACE} if blanks else {"whitespace_flexible": False}
    return orjson.dumps({**schema, "x-guidance": {**white_space, "lenient": not strict}}).decode()


def check_size(schema: Mapping[str, Any], param: str, *, strict: bool) -> None:
    """Check the counts that cost most before anything is compiled. Ends with the first that is too large."""
    num_properties = num_values = 0
    rest: list[tuple[Any, int]] = [(schema, 1)]
    while rest:
        node, depth = rest.pop()
        if strict and depth > MAX_SCHEMA_DEPTH:
            raise RequestError(f"{param}: the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels", param=param)
        if isinstance(node, Mapping):
            properties, values, pattern = node.get("properties"), node.get("enum"), node.get("pattern")
            num_properties += len(properties) if isinstance(properties, Mapping) else 0
            num_values += len(values) if isinstance(values, list) else 0
            _check_count(num_properties, MAX_PROPERTIES, "has {} properties", param)
            _check_count(num_values, MAX_ENUM_VALUES, "lists {} values", param)
            if isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARS:
                raise RequestError(f"{param}: a pattern is longer than {MAX_PATTERN_CHARS} characters", param=param)
            rest.extend((inner, depth + 1) for inner in node.values())
        elif isinstance(node, list):
            # Each item takes at least two bytes of the schema.
            _check_count(2 * len(node), MAX_SCHEMA_BYTES, "has {} bytes", param)
            rest.extend((inner, depth + 1) for inner in node)
    _check_count(len(orjson.dumps(schema)), MAX_SCHEMA_BYTES, "has {} bytes", param)


def _check_count(count: int, most: int, what: str, param: str) -> None:
    if count > most:
        raise RequestError(f"{param}: the schema {what.format(count)}; at most {most} are allowed", param=param)
