"""Declares tools as TypeScript, the notation in the training data of Kimi K2.5 and later.

Moonshot's tokenizer creates this text in Python and passes it to the chat template, so the template alone cannot create
it. As there, schemas without such a notation are declared as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_INDENT = "  "
_NAMES = {"integer": "number", "object": "{}", "array": "Array<any>"}
"""JSON type → TypeScript's, where a list of types is given and the two differ."""
_JSON_TYPES = frozenset({"string", "number", "boolean", "null", *_NAMES})
_CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
"""JSON type → the keywords that are written as a comment."""
_ENUM_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


def typescript_of(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declarations of normalised `tools`, whose keys are sorted (`with_sorted_keys`).

    Raises ValueError for a schema that the notation has no form for.
    """
    try:
        functions = [_declared(tool["function"]) for tool in tools]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("a schema with a part of another type than JSON Schema has there") from error
    return "\n".join(["# Tools\n\n## functions\nnamespace functions {", *functions, "}\n"])


def with_sorted_keys(value: Any) -> Any:
    """`value` with the keys of every object in it sorted."""
    if isinstance(value, Mapping):
        return {key: with_sorted_keys(value[key]) for key in sorted(value)}
    return [with_sorted_keys(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class _Type:
    """One type: how it is written at an indentation, and what is said of it on the lines before."""

    write: Callable[[str], str]
    description: str = ""
    constraints: str = ""

    def comment(self, indent: str) -> str:
        """Whole lines; empty if nothing is said."""
        lines = _comment(self.description, indent) if self.description else ""
        return lines + (f"{indent}// {self.constraints}\n" if self.constraints else "")


@dataclass(slots=True)
class _Names:
    """What the `$ref`s of one function may name."""

    definitions: dict[str, Any] = field(default_factory=dict)
    refers_to_whole: bool = False
    """Whether a `$ref` names the parameters themselves."""


def _declared(function: Mapping[str, Any]) -> str:
    names = _Names()
    parameters = function.get("parameters") or {}
    fields = _fields(parameters, names)
    whole = _written_object(fields, parameters, names)
    is_recursive = names.refers_to_whole
    lines = []
    if is_recursive:  # in the order of the schema here, not required ones first
        inner = ",\n".join(each.write(_INDENT) for each in fields)
        lines.append(f"interface parameters {{\n{inner}\n}}")
    for name, schema in list(names.definitions.items()):
        shape = _type(schema, names).write("")
        description = _comment(schema["description"], "") if schema.get("description") else ""
        lines.append(f"{description}interface {name} {shape}")
    if function.get("description"):
        lines.append(_comment(function["description"], "").removesuffix("\n"))
    given = "parameters" if is_recursive else whole("")
    return "\n".join([*filter(None, lines), f"type {function['name']} = (_: {given}) => any;"])


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: _Type
    is_optional: bool
    default: Any

    def write(self, indent: str) -> str:
        lines = self.type.comment(indent)
        if self.default is not None:
            is_number = isinstance(self.default, bool | int | float)  # of which true and false are Python's here
            shown = repr(self.default) if is_number else json.dumps(self.default, ensure_ascii=False)
            lines += f"{indent}// Default: {shown}\n"
        return f"{lines}{indent}{self.name}{'?' if self.is_optional else ''}: {self.type.write(indent)}"


def _fields(schema: Mapping[str, Any], names: _Names) -> list[_Field]:
    names.definitions.update(schema.get("$defs") or {})
    required = frozenset(schema.get("required", ()))
    return [
        _Field(
            name,
            _type(value, names),
            is_optional=name not in required,
            default=value.get("default") if isinstance(value, Mapping) else None,
        )
        for name, value in schema.get("properties", {}).items()
    ]


def _written_object(fields: Sequence[_Field], schema: Mapping[str, Any], names: _Names) -> Callable[[str], str]:
    others = schema.get("additionalProperties")
    if others is not None and not isinstance(others, bool | Mapping):
        raise ValueError(f"additionalProperties={others!r}")
    if isinstance(others, bool):
        rest: _Type | None = _named("any" if others else "never")
    else:
        rest = None if others is None else _type(others, names)
    in_order = sorted(fields, key=lambda each: (each.is_optional, each.name))

    def write(indent: str) -> str:
        inner = indent + _INDENT
        lines = [each.write(inner) for each in in_order]
        if rest is not None:
            lines.append(f"{inner}[k: string]: {rest.write(inner)}")
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

    return write


def _type(schema: Any, names: _Names) -> _Type:
    """Raises ValueError or TypeError for a schema that has no form."""
    if isinstance(schema, bool):
        return _named("any" if schema else "null")
    if "$ref" in schema:
        return _named(_referred(schema["$ref"], names), schema)
    if "anyOf" in schema:
        choices = [_type(choice, names) for choice in schema["anyOf"]]
        return _Type(lambda indent: " | ".join(each.write(indent) for each in choices), schema.get("description", ""))
    if "enum" in schema:
        return _named(_enumerated(schema), schema)
    if not schema:
        return _named("any")
    kind = schema.get("type")
    if isinstance(kind, list):
        if not _JSON_TYPES.issuperset(kind):
            raise ValueError(f"type={kind!r}")
        return _named(" | ".join(_NAMES.get(each) or each for each in kind), schema)
    if not isinstance(kind, str):
        raise TypeError("a schema without a type")
    if kind == "object":
        return _Type(_written_object(_fields(schema, names), schema, names), schema.get("description", ""))
    constraints = ", ".join(f"{key}: {schema[key]}" for key in _CONSTRAINTS.get(kind, ()) if key in schema)
    if kind == "array":
        item = _type(schema["items"], names) if schema.get("items") else _named("any")
        return _Type(lambda indent: _written_array(item, indent), schema.get("description", ""), constraints)
    name = "number" if kind == "integer" else kind
    return _Type(lambda _: name, schema.get("description", ""), constraints)


def _named(name: str, schema: Mapping[str, Any] | None = None) -> _Type:
    return _Type(lambda _: name, (schema or {}).get("description", ""))


def _referred(reference: str, names: _Names) -> str:
    if reference == "#":
        names.refers_to_whole = True
        return "parameters"
    name = reference.removeprefix("#/$defs/").split("/")[-1]
    if not reference.startswith("#/$defs/") or name not in names.definitions:
        raise ValueError(f"$ref={reference!r}")
    return name


def _enumerated(schema: Mapping[str, Any]) -> str:
    """The values, which must be of the schema's type other than null."""
    kind = schema.get("type")
    if isinstance(kind, list):
        if len(kind) > 2 or (len(kind) == 2 and "null" not in kind):
            raise ValueError(f"enum with type={kind!r}")
        kind = next((each for each in kind if each != "null"), "null")
    of = _ENUM_TYPES.get(kind) if isinstance(kind, str) else None
    if of is not None and not all(value is None or isinstance(value, of) for value in schema["enum"]):
        raise ValueError(f"enum with other values than type={kind!r}")
    return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"])


def _written_array(item: _Type, indent: str) -> str:
    inner = indent + _INDENT
    comment = item.comment(inner)
    return f"Array<\n{comment}{inner}{item.write(inner)}\n{indent}>" if comment else f"Array<{item.write(indent)}>"


def _comment(text: str, indent: str) -> str:
    """One comment a line of `text`, and empty lines as they are."""
    return "".join(f"{indent}// {line}\n" if line else "\n" for line in text.split("\n"))
