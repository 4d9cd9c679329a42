"""Rules for JSON that matches a tool's schema, with the keys of objects in any order.

llguidance's rules for a schema fix the order of keys. They are used for parts that these rules do not cover, such as
`allOf`. References may refer to any part of the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from ballast.errors import RequestError, shown
from ballast.grammar.key_order import KeyOrder
from ballast.grammar.source import WHITESPACE, check_size, embedded_schema, quoted
from ballast.text.calls.argument_values import ANY_TYPE, referred, resolved, types_in
from ballast.text.calls.parameters import MAX_TRACKED

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id", "$defs", "definitions"),
    }
)
"""Keywords that do not restrict a value."""
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties"})
_OF_ARRAYS = frozenset({"type", "items", "minItems", "maxItems"})
_LEFT_TO_LLGUIDANCE = frozenset(
    {
        *("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "prefixItems"),
        *("patternProperties", "minProperties", "maxProperties"),
    }
)
"""Keywords that llguidance holds and the rules for objects and arrays do not. It leaves out others unless the schema is
strict."""
_ROOT = "schema"

_PLAIN = r'[^"\\\x00-\x1f\x7f]'
_COMMON: Mapping[str, str] = {
    "ws": "WS?",
    "WS": f"/{WHITESPACE}/",
    "json": "json_object | json_array | json_scalar",
    "json_object": '"{" ws (json_pair ("," ws json_pair)*)? "}"',
    "json_pair": 'JSON_KEY ws ":" ws json ws',
    "json_array": '"[" ws (json ws ("," ws json ws)*)? "]"',
    # Few escapes, as in llguidance's strings: another spelling of a declared key must not count as another key.
    "JSON_KEY": rf'/"({_PLAIN}|\\(["\\bfnrt]|u00[01][0-9a-f]))*"/',
}


def common_rules(param: str) -> Iterator[str]:
    """The common rules of all `JsonRules`."""
    for name, rule in _COMMON.items():
        yield f"{name}: {rule}"
    scalar = embedded_schema({"type": sorted(_SCALARS)}, param, strict=True, blanks=False)
    yield f"json_scalar: {scalar}"
    for name in sorted(_SCALARS):
        yield f"json_{name}: {embedded_schema({'type': name}, param, strict=True, blanks=False)}"


class JsonRules:
    """The rules of one tool."""

    def __init__(self, prefix: str, root: Mapping[str, Any], path: str, *, strict: bool) -> None:
        """`prefix` begins the names of rules. `path` names `root`, the tool's schema, in errors. Raises RequestError
        for a schema that is too large."""
        check_size(root, path, strict=strict)
        self.lines: list[str] = []
        """The rules so far."""
        self._prefix, self._root, self._path, self._strict = prefix, root, path, strict
        self._num_names = 0
        self._references: dict[str, str] = {}
        """Reference → the rule for what it names."""

    def arguments(self) -> str:
        """The arguments of a call, which are an object even if the schema also allows other values. Raises RequestError
        as `value` does."""
        top = resolved(self._root, self._root)
        if "$ref" in top and not self._strict:
            return "json_object"
        return self.value({**top, "type": "object"})

    def value(self, schema: object) -> str:
        """An expression for a value that follows `schema`, which is a part of the tool's. Raises RequestError if the
        tool is strict and a reference names no part of its schema."""
        if schema is True or (isinstance(schema, Mapping) and not schema.keys() - ANNOTATIONS):
            return "json"
        if not isinstance(schema, Mapping):
            return self._by_llguidance({"not": {}} if schema is False else {"type": schema})
        keys = schema.keys() - ANNOTATIONS
        if "$ref" in keys:
            return self._reference(schema, keys)
        if (parts := self.alternatives(schema)) is not None:
            return f"({' | '.join(map(self.value, parts))})"
        kind = schema.get("type")
        if kind == "object" and self._is_covered(keys, _OF_OBJECTS):
            return self._object(schema) or self._by_llguidance(schema)
        if kind == "array" and self._is_covered(keys, _OF_ARRAYS):
            return self._array(schema) or self._by_llguidance(schema)
        if keys == {"type"} and isinstance(kind, str) and kind in _SCALARS:
            return f"json_{kind}"
        return self._by_llguidance(schema)

    def alternatives(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """The schemas of which a value follows one; None where `schema` is no such choice."""
        keys, kinds = schema.keys() - ANNOTATIONS, schema.get("type")
        if isinstance(kinds, list) and kinds and not keys & _LEFT_TO_LLGUIDANCE:
            return [{**schema, "type": kind} for kind in kinds]
        if kinds is None and keys and keys <= _OF_OBJECTS:
            return [
                {**schema, "type": "object"},
                *({"type": each} for each in sorted(ANY_TYPE - {"object", "integer"})),
            ]
        for word in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(word)
            if word == "allOf" and not (isinstance(parts, list) and len(parts) == 1):
                continue
            if keys == {word} and isinstance(parts, list) and parts:
                return parts if word != "oneOf" or not self._strict or self._are_disjoint(parts) else None
        return None

    def _are_disjoint(self, parts: list[Any]) -> bool:
        types = [types_in(part, self._root) for part in parts]
        return all(each != ANY_TYPE for each in types) and not any(one & other for one, other in combinations(types, 2))

    def _is_covered(self, keys: frozenset[str] | set[str], known: frozenset[str]) -> bool:
        return not (keys - known if self._strict else (keys - known) & _LEFT_TO_LLGUIDANCE)

    def _reference(self, schema: Mapping[str, Any], keys: set[str]) -> str:
        target = resolved(schema, self._root)
        if "$ref" in target:
            if self._strict:
                reference = shown(str(target["$ref"]))
                raise RequestError(
                    f"{self._path}: the reference {reference} does not exist in this schema", param=self._path
                )
            return "json"
        if len(keys) > 1:
            direct = referred(schema["$ref"], self._root)
            overlaps = isinstance(direct, Mapping) and direct.keys() & keys
            return self._by_llguidance(schema) if overlaps else self.value(target)
        if schema["$ref"] not in self._references:
            name = self._references[schema["$ref"]] = f"{self._prefix}_ref_{len(self._references)}"
            self.lines.append(f"{name}: {self.value(target)}")
        return self._references[schema["$ref"]]

    def _object(self, schema: Mapping[str, Any]) -> str | None:
        """None for one that the rules here cannot follow."""
        properties, needed = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(needed, list):
            return None
        required = tuple(dict.fromkeys(key for key in needed if isinstance(key, str)))
        others = schema.get("additionalProperties", True)
        is_unheld = self._strict and len(required) > MAX_TRACKED
        if is_unheld or (others is False and any(key not in properties for key in required)):
            return None
        declared = tuple(dict.fromkeys((*required, *properties)))
        if not declared:
            return "json_object" if others is True else self._map(others)
        order = KeyOrder(required[:MAX_TRACKED], declared[:MAX_TRACKED])
        name = self._name("object")
        members = []
        for key in declared:
            member = self._name("member")
            self.lines.append(f"{member}: {_spelled(key)} {_member(self.value(properties.get(key, others)))}")
            members.append(f"{member} {name}_rest{order.used(key)} {order.is_free(key)}")
        if others is not False:
            other = f"{name.upper()}_OTHER"
            self.lines.append(f"{other}: JSON_KEY & ~({' | '.join(map(_spelled, declared))})")
            self.lines.append(f"{name}_other: {other} {_member(self.value(others))}")
            members.append(f"{name}_other {name}_rest{order.same}")
        self.lines += [
            f'{name}: "{{" ws {name}_first{order.none_used}',
            f"{name}_first{order.same}: {' | '.join([_closing(order), *members])}",
            f"{name}_rest{order.same}: {' | '.join([_closing(order), *(_COMMA + each for each in members)])}",
        ]
        return name

    def _map(self, values: object) -> str:
        if values is False:
            return '("{" ws "}")'
        name = self._name("map")
        self.lines.append(f"{name}_pair: JSON_KEY {_member(self.value(values))}")
        self.lines.append(f'{name}: "{{" ws ({name}_pair ("," ws {name}_pair)*)? "}}"')
        return name

    def _array(self, schema: Mapping[str, Any]) -> str | None:
        """None for one that the rules here cannot follow."""
        items, least, most = schema.get("items", True), schema.get("minItems", 0), schema.get("maxItems")
        if not isinstance(items, Mapping | bool) or items is False or not _is_count(least):
            return None
        if most is not None and (not _is_count(most) or most < max(least, 1)):
            return None
        name = self._name("array")
        self.lines.append(f"{name}_item: {self.value(items)} ws")
        times = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        filled = f"{name}_item" + (f' ("," ws {name}_item){times}' if most != 1 else "")
        self.lines.append(f'{name}: "[" ws ' + (filled if least else f"({filled})?") + ' "]"')
        return name

    def _by_llguidance(self, schema: Mapping[str, Any]) -> str:
        has_blanks = not types_in(schema, self._root) <= _SCALARS
        name = self._name("value")
        whole = {**_moved(schema), "$defs": {_ROOT: _moved(self._root)}} if _refers(schema) else schema
        self.lines.append(f"{name}: {embedded_schema(whole, self._path, strict=self._strict, blanks=has_blanks)}")
        return name

    def _name(self, kind: str) -> str:
        self._num_names += 1
        return f"{self._prefix}_{kind}_{self._num_names}"


_COMMA = '"," ws '


def _closing(order: KeyOrder) -> str:
    return f'"}}" {order.all_given}'


def _spelled(key: str) -> str:
    return quoted(json.dumps(key, ensure_ascii=False))


def _member(value: str) -> str:
    return f'ws ":" ws {value} ws'


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refers(schema: object) -> bool:
    if isinstance(schema, Mapping):
        return isinstance(schema.get("$ref"), str) or any(map(_refers, schema.values()))
    return isinstance(schema, list) and any(map(_refers, schema))


def _moved(schema: Any) -> Any:
    """`schema` with its references as they are once the tool's schema is a definition of another."""
    if isinstance(schema, list):
        return list(map(_moved, schema))
    if not isinstance(schema, Mapping):
        return schema
    moved = {name: _moved(value) for name, value in schema.items()}
    if isinstance(reference := moved.get("$ref"), str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = f"#/$defs/{_ROOT}{reference[1:]}"
    return moved
