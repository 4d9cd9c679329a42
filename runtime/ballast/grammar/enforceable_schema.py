"""Extracts the part of a JSON schema that a grammar can enforce. It is never stricter than the schema.

llguidance checks each part separately, so its rules are not repeated here. The checks do not follow references within
the schema, because the parts that they refer to are checked too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import orjson
from llguidance import LLMatcher

MAX_CHECKED_BYTES = 2 << 20
"""Work limit for one schema: about two seconds. Parts that are unchecked by then are left out."""

_CACHE_SIZE = 64

_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose value is an object of schemas."""
_SCHEMA = frozenset(
    {
        *("items", "additionalItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("not", "if", "then", "else"),
    }
)
"""Keywords whose value is one schema."""
_SCHEMA_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
"""Keywords whose value is a list of schemas."""
_CONJUNCTIONS = frozenset({"required", "allOf", "patternProperties"})
"""Keywords of which each entry restricts a value further, so that a schema without one of them is weaker."""
_REST_OF: Mapping[str, str] = {
    "patternProperties": "additionalProperties",
    "prefixItems": "items",
    "properties": "additionalProperties",
}
"""Keyword → the keyword that applies to its remaining members. The second would be too strict without the first."""
_LITERALS = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are not schemas."""
_DEFINITIONS = ("$defs", "definitions")
_FIRST = ("type", "enum", "const", "properties", "patternProperties", "prefixItems")
"""Keywords that take precedence over contradicting ones."""
_UNKNOWN_KEYS = "Unimplemented keys: "
_UNKNOWN_FORMAT = "Unknown format: "

MAX_SCHEMA_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Enforceable:
    """The enforceable part of a schema."""

    schema: Mapping[str, Any]
    left_out: tuple[str, ...] = ()
    """Paths of the parts that cannot be enforced, such as .properties.age.minimum; "" is the whole schema."""


def enforceable(schema: Mapping[str, Any]) -> Enforceable:
    """The part of `schema` that a grammar can enforce. Parts below MAX_SCHEMA_DEPTH levels are left out."""
    return _enforceable(orjson.dumps(schema))


@lru_cache(maxsize=_CACHE_SIZE)
def _enforceable(data: bytes) -> Enforceable:
    schema: dict[str, Any] = orjson.loads(data)
    left_out: list[str] = []
    pruned = _pruned(schema, MAX_SCHEMA_DEPTH, "", left_out)
    is_error, messages = _check(pruned)
    if is_error:
        reduction = _Reduction(pruned, left_out)
        pruned = reduction.whole()
        is_error, messages = _check(pruned)
    if is_error:
        return Enforceable({"type": "object"} if schema.get("type") == "object" else {}, ("",))
    return Enforceable(pruned, (*left_out, *_not_implemented(pruned, messages)))


def _check(schema: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Whether no grammar can be made, and llguidance's messages: the error, or what it leaves out."""
    data = orjson.dumps({**schema, "x-guidance": {"lenient": True}})
    return LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(data.decode()))


def _not_implemented(schema: Mapping[str, Any], messages: list[str]) -> Iterator[str]:
    """The paths of keywords that llguidance says that it leaves out."""
    keys: set[str] = set()
    formats: set[str] = set()
    for message in messages:
        if message.startswith(_UNKNOWN_KEYS):
            keys.update(orjson.loads(message.removeprefix(_UNKNOWN_KEYS)))
        elif message.startswith(_UNKNOWN_FORMAT):
            formats.add(message.removeprefix(_UNKNOWN_FORMAT))
    if not keys and not formats:
        return
    for path, node in _nodes(schema, ""):
        yield from (f"{path}.{key}" for key in node if key in keys or (key == "format" and node[key] in formats))


def _nodes(node: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas in a schema, itself first, each with its path."""
    if isinstance(node, dict):
        yield path, node
        for step, inner in _inner(node):
            yield from _nodes(inner, f"{path}.{step}")


def _inner(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a schema, each with its path in it."""
    for key, value in node.items():
        if key in _SCHEMAS and isinstance(value, dict):
            yield from ((f"{key}.{name}", each) for name, each in value.items())
        elif key in _SCHEMA_LIST and isinstance(value, list):
            yield from ((f"{key}.{n}", each) for n, each in enumerate(value))
        elif key in _SCHEMA:
            yield key, value


def _mapped(node: Mapping[str, Any], change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A schema with `change(inner, path)` in place of each of its inner schemas."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in _SCHEMAS and isinstance(value, dict):
            found[key] = {name: change(each, f"{key}.{name}") for name, each in value.items()}
        elif key in _SCHEMA_LIST and isinstance(value, list):
            found[key] = [change(each, f"{key}.{n}") for n, each in enumerate(value)]
        elif key in _SCHEMA:
            found[key] = change(value, key)
        else:
            found[key] = value
    return found


def _pruned(node: Any, levels: int, path: str, left_out: list[str]) -> Any:
    """The first `levels` levels of a value."""
    if not isinstance(node, (dict, list)):
        return node
    if levels == 0:
        left_out.append(path)
        return True
    if isinstance(node, list):
        return [_pruned(each, levels - 1, f"{path}.{n}", left_out) for n, each in enumerate(node)]
    return {
        key: each if key in _LITERALS else _pruned(each, levels - 1, f"{path}.{key}", left_out)
        for key, each in node.items()
    }


class _Reduction:
    """Removes the parts of a schema that grammars do not support."""

    def __init__(self, root: Mapping[str, Any], left_out: list[str]) -> None:
        self._root = root
        self._left_out = left_out
        self._bytes_left = MAX_CHECKED_BYTES

    def whole(self) -> dict[str, Any]:
        """The remaining root."""
        # First what references lead to, since the checks of the rest do not follow them.
        shared = {key: self._root[key] for key in _DEFINITIONS if isinstance(self._root.get(key), dict)}
        sound = _mapped(shared, lambda each, step: self._reduced(each, f".{step}"))
        reduced: dict[str, Any] = self._reduced({**self._root, **sound}, "")
        if not _check(reduced)[0]:
            return reduced
        # The references themselves are at fault, such as one that refers only to itself.
        for path, node in _nodes(reduced, ""):
            if "$ref" in node:
                self._left_out.append(f"{path}.$ref")
        stripped: dict[str, Any] = _without_refs(reduced, lambda _: True)
        return stripped

    def _reduced(self, node: Any, path: str) -> Any:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            self._left_out.append(path)
            return True
        # Without its references, one choice of anyOf may be so weak that the others are not checked.
        if not any("$ref" in each for _, each in _nodes(node, "")) and self._holds(node):
            return node
        inner = _mapped(node, lambda each, step: self._reduced(each, f"{path}.{step}"))
        return inner if self._holds(inner) else self._kept(inner, path)

    def _kept(self, node: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The keywords that go together, from the first on."""
        kept: dict[str, Any] = {}
        dropped: set[str] = set()
        rank = {key: n for n, key in enumerate(_FIRST)}
        for key in sorted(node, key=lambda key: rank.get(key, len(rank))):
            value = node[key]
            if key in dropped:
                self._left_out.append(f"{path}.{key}")
            elif self._holds({**kept, key: value}):
                kept[key] = value
            else:
                dropped |= {_REST_OF[key]} if key in _REST_OF else set()
                if key in _CONJUNCTIONS and isinstance(value, (dict, list)):
                    kept[key] = self._entries(kept, key, value, path)
                else:
                    self._left_out.append(f"{path}.{key}")
        return kept

    def _entries(self, kept: Mapping[str, Any], key: str, value: Any, path: str) -> Any:
        """The entries of a keyword that go together with what is kept."""
        is_list = isinstance(value, list)
        found: Any = [] if is_list else {}
        for step, each in enumerate(value) if is_list else value.items():
            more = [*found, each] if is_list else {**found, step: each}
            if self._holds({**kept, key: more}):
                found = more
            else:
                self._left_out.append(f"{path}.{key}.{step}")
        return found

    def _holds(self, node: Mapping[str, Any]) -> bool:
        alone = _without_refs(node, self._has)
        self._bytes_left -= len(orjson.dumps(alone))
        return self._bytes_left >= 0 and not _check(alone)[0]

    def _has(self, reference: Any) -> bool:
        """Whether a reference leads to a schema in the root."""
        if not isinstance(reference, str) or not re.fullmatch(r"#(/.*)?", reference, re.DOTALL):
            return False
        found: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                return False
        return isinstance(found, (dict, bool))


def _without_refs(node: Any, is_sound: Callable[[Any], bool]) -> Any:
    """A schema without its sound references. The others become null, which no grammar can be made of."""
    if not isinstance(node, dict):
        return node
    rest = {key: value for key, value in node.items() if key != "$ref"}
    if "$ref" in node and not is_sound(node["$ref"]):
        rest["$ref"] = None
    return _mapped(rest, lambda each, _: _without_refs(each, is_sound))
