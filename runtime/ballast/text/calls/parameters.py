"""What a function's schema says about the arguments of a call. The grammars of calls and their readers share it, so
that both agree on where an argument begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast.text.calls.argument_values import resolved, types_of

MAX_TRACKED = 64
"""A grammar notes the use of this many keys of a call."""
_ADDS_KEYS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})
"""Keywords that may allow arguments which `properties` does not list."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The arguments of one function."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    """As the tool declares it: references are relative to it."""
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    takes_others: bool = True
    """Whether a call may have arguments that are not declared."""

    @property
    def tracked(self) -> tuple[str, ...]:
        """Declared keys whose use a grammar notes."""
        return (*self.required, *self.optional)[:MAX_TRACKED]

    def types_of(self, key: str) -> frozenset[str]:
        """The JSON types that the value of `key` may have."""
        return types_of(self.schema, key)

    def may_begin(self, key: str, given: Iterable[str]) -> bool:
        """Whether a tag with this key begins an argument although the tag that closes the value before it is missing,
        in a call that has the keys `given`."""
        declared = {*self.required, *self.optional}
        return self.takes_others if key not in declared else key in self.tracked and key not in given

    @classmethod
    def of(cls, function: Mapping[str, Any]) -> Parameters:
        """Of a function as in OpenAI's requests. Parts of its schema that cannot be read count as absent."""
        schema = function.get("parameters")
        if not isinstance(schema, Mapping) or not schema:
            return cls()
        top = resolved(schema, schema)
        listed, needed = top.get("properties"), top.get("required")
        properties = listed if isinstance(listed, Mapping) else {}
        required = tuple(
            dict.fromkeys(key for key in (needed if isinstance(needed, list) else ()) if isinstance(key, str))
        )
        optional = tuple(key for key in properties if key not in required)
        takes_others = _takes_others({**schema, **top}, strict=bool(function.get("strict")))
        return cls(schema, required, optional, takes_others)


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Parameters]:
    """The parameters of each function, by name, of tools as in OpenAI's requests."""
    return {function["name"]: Parameters.of(function) for function in (tool["function"] for tool in tools)}


def _takes_others(schema: Mapping[str, Any], *, strict: bool) -> bool:
    others = schema.get("additionalProperties")
    if "properties" not in schema:
        return others is not False
    return not strict and (bool(schema.keys() & _ADDS_KEYS) or others is True or isinstance(others, Mapping))
