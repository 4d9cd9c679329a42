"""JSON schemas of request fields for /openapi.json, where types alone do not describe what the server accepts."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from ballast.wire.field_rules import Alias, NoEffect, Refused, Rule


@dataclass(frozen=True, slots=True)
class MoreSchema:
    """In a field's annotation: keywords that are added to the schema of its type."""

    keywords: Mapping[str, Any] = field(hash=False)

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Called by Pydantic."""
        return {**handler(core_schema), **deepcopy(dict(self.keywords))}


@dataclass(frozen=True, slots=True)
class InPlaceSchema:
    """In a field's annotation: a schema that replaces that of its type, for values that are converted before
    validation."""

    schema: Mapping[str, Any] = field(hash=False)

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Called by Pydantic."""
        del core_schema, handler
        return deepcopy(dict(self.schema))


def items(*required: str, rules: Mapping[str, Rule] | None = None, **properties: Any) -> MoreSchema:
    """The schema of a list of objects: required fields, schemas of some fields, and the rules for others."""
    item: dict[str, Any] = {"type": "object", "required": list(required), "properties": properties}
    add_rules(item, rules or {})
    return MoreSchema({"items": item})


def inlined(kind: type[BaseModel], name: str) -> InPlaceSchema:
    """The schema of one field of another type, without references."""
    whole = kind.model_json_schema()

    def resolved(schema: Any) -> Any:
        if isinstance(schema, list):
            return [resolved(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            return resolved(whole["$defs"][schema["$ref"].rpartition("/")[2]])
        return {key: resolved(value) for key, value in schema.items()}

    return InPlaceSchema(resolved(whole["properties"][name]))


def add_rules(schema: dict[str, Any], rules: Mapping[str, Rule]) -> None:
    """Add the fields of `rules` to the schema of an object."""
    properties: dict[str, Any] = schema.setdefault("properties", {})
    for name, rule in rules.items():
        match rule:
            case NoEffect(why):  # a field that the type declares is still checked
                properties[name] = {**properties.get(name, {}), "description": f"No effect: {why}."}
            case Refused(why, harmless):
                properties[name] = {"enum": [None, *harmless], "description": f"Not supported: {why}."}
            case Alias(other):
                known = properties.get(other, {})
                same = {key: value for key, value in known.items() if key not in ("default", "description")}
                properties[name] = {**deepcopy(same), "description": f"As {other}."}
    _take_aliases_of_required(schema, rules)


def _take_aliases_of_required(schema: dict[str, Any], rules: Mapping[str, Rule]) -> None:
    """A required field may be sent under an alias, and is then null or missing under its own name."""
    for name, rule in rules.items():
        if isinstance(rule, Alias) and rule.field in schema.get("required", ()):
            own = schema["properties"][rule.field]
            schema["required"] = [each for each in schema["required"] if each != rule.field]
            schema.setdefault("allOf", []).append(
                {
                    "anyOf": [
                        {"required": [rule.field], "properties": {rule.field: deepcopy(own)}},
                        {"required": [name], "properties": {name: deepcopy(own)}},
                    ]
                }
            )
            for each in (rule.field, name):
                schema["properties"][each] = {"anyOf": [deepcopy(own), {"type": "null"}]}
