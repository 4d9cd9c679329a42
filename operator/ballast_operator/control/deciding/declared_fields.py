"""Which fields the installed definition of a kind declares. Pure.

After an upgrade of the operator, the definition may still be of an earlier release. The API server then refuses a
status with any field that it does not declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def declared_part(value: Any, schema: Mapping[str, Any]) -> Any:
    """The value without the fields that the schema does not declare."""
    properties, items = schema.get("properties"), schema.get("items")
    if isinstance(value, Mapping) and properties is not None:
        return {name: declared_part(field, properties[name]) for name, field in value.items() if name in properties}
    if isinstance(value, list) and items is not None:
        return [declared_part(item, items) for item in value]
    return value


def undeclared_fields(wanted: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of the fields of the schema `wanted` that `schema` lacks, without the fields inside these."""
    for name, field in wanted.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        if name not in schema.get("properties", {}):
            yield where
        else:
            yield from undeclared_fields(field, schema["properties"][name], where)
    if "items" in wanted and "items" in schema:
        yield from undeclared_fields(wanted["items"], schema["items"], f"{path}[]")
