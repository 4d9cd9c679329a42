"""Functions whose calls are key/value pairs, for grammars of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ballast.errors import RequestError
from ballast.grammar.calls.text_values import TextValue, text_value
from ballast.grammar.json_rules import JsonRules
from ballast.grammar.key_order import KeyOrder
from ballast.text.calls.argument_values import resolved
from ballast.text.calls.parameters import MAX_TRACKED, Parameters

_OTHER_RULES = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")
"""Keywords that may allow arguments which `properties` does not list."""


class Pair(NamedTuple):
    """A key and its value."""

    rule: str
    key: str
    value: TextValue


class Function(NamedTuple):
    """The content of a call of one function."""

    number: int
    name: str
    parameters: Parameters
    order: KeyOrder
    pairs: list[Pair]
    takes_others: bool
    """Whether other pairs are allowed."""
    lines: list[str]
    """Rules that the values refer to."""

    def inner(self, pairs: Iterable[str], other: str) -> Iterator[str]:
        """Yields the rules of the pairs in any order, of which `inner_<number>` is the first. `pairs`: an expression
        for each pair. `other`: one for a pair that is not declared."""
        rest = f"inner_rest_{self.number}"
        ways = [f'"" {self.order.all_given}']
        for pair, expression in zip(self.pairs, pairs, strict=True):
            ways.append(f"{expression} {rest}{self.order.used(pair.key)} {self.order.is_free(pair.key)}")
        if self.takes_others:
            ways.append(f"{other} {rest}{self.order.same}")
        yield f"inner_{self.number}: {rest}{self.order.none_used}"
        yield f"{rest}{self.order.same}: {' | '.join(ways)}"


def functions_of(
    offered: Iterable[tuple[int, Mapping[str, Any]]], param: str, *, any_arguments: bool
) -> Iterator[Function]:
    """The functions that are given with their numbers. With `any_arguments` those that are not strict take any pairs.
    Raises RequestError for a strict function whose arguments cannot be enforced, and for a schema whose `properties` or
    `required` cannot be read."""
    for n, function in offered:
        strict, path = bool(function.get("strict")), f"{param}.{n}.function.parameters"
        parameters, is_free = Parameters.of(function), any_arguments and not strict
        if not is_free:
            _check(parameters, path, strict=strict)
        schema = parameters.schema
        rules = JsonRules(f"t{n}", {} if is_free else schema, path, strict=strict)
        properties = resolved(schema, schema).get("properties", {})
        pairs: list[Pair] = []
        for key in (*parameters.required, *parameters.optional):
            value = TextValue(is_any_text=True, json=["json"])
            if not is_free and key in properties:
                value = text_value(properties[key], schema, rules, f"{path}.properties.{key}", strict=strict)
            pairs.append(Pair(f"pair_{n}_{len(pairs)}", key, value))
        required = () if is_free else parameters.required[:MAX_TRACKED]
        order, takes_others = KeyOrder(required, parameters.tracked), is_free or parameters.takes_others
        yield Function(n, function["name"], parameters, order, pairs, takes_others, rules.lines)


def _check(parameters: Parameters, path: str, *, strict: bool) -> None:
    schema = resolved(parameters.schema, parameters.schema)
    for part, kind, expected in (("properties", Mapping, "an object"), ("required", list, "a list")):
        if part in schema and not isinstance(schema[part], kind):
            raise RequestError(f"{path}.{part} must be {expected}", param=f"{path}.{part}")
    if not strict:
        return
    others = schema.get("additionalProperties")
    named = [word for word in _OTHER_RULES if word in schema]
    if named or (others and others is not True and "properties" not in schema):
        raise RequestError(
            f"{path}: {min(named, default='additionalProperties')} cannot be enforced in this model's format of calls",
            param=path,
        )
    if len(parameters.required) > MAX_TRACKED:
        raise RequestError(
            f"{path}: {len(parameters.required)} required arguments cannot be enforced in this model's "
            f"format of calls; at most {MAX_TRACKED} can",
            param=path,
        )
