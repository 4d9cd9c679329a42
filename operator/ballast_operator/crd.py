"""Makes a CustomResourceDefinition from the types of the API."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from ballast_operator.api.base import cel
from ballast_operator.names import GROUP, MAX_NAME_LENGTH, NAME_PATTERN, SERVED_VERSIONS, VERSION

_KEPT = {
    "type",
    "description",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "pattern",
    "enum",
    "format",
    "required",
}


def definition(
    kind: str, plural: str, short_name: str, columns: list[dict[str, Any]], schema: dict[str, Any], **subresources: Any
) -> dict[str, Any]:
    """The definition of a kind. `schema`: of a whole object. `subresources`: those besides the status.

    All versions have the same content, so the API server converts objects by changing `apiVersion` alone.
    """
    content = {
        "subresources": {"status": {}, **subresources},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "ballast"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["ballast"],
            },
            "conversion": {"strategy": "None"},
            "versions": [
                {"name": name, "served": True, "storage": name == VERSION, **copy.deepcopy(content)}
                for name in SERVED_VERSIONS
            ],
        },
    }


def to_yaml(definition: dict[str, Any]) -> str:
    """The text of the file in charts/ballast/files/crd."""
    text: str = yaml.safe_dump(definition, sort_keys=False, width=120, allow_unicode=True)
    return f"# Made by `ballast-operator crd` from the operator's types; change those, not this file.\n{text}"


def column(name: str, kind: str, path: str, **more: Any) -> dict[str, Any]:
    """A column of `kubectl get`."""
    return {"name": name, "type": kind, "jsonPath": path, **more}


def condition_column(name: str, condition: str, field: str, **more: Any) -> dict[str, Any]:
    """The column with a field of a condition."""
    return column(name, "string", f'.status.conditions[?(@.type=="{condition}")].{field}', **more)


def root_schema(
    kind: str, description: str, name_rule: str, spec: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    """The schema of a whole object. `spec` and `status`: pydantic's JSON Schemas."""
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "x-kubernetes-validations": [
            {
                key: value
                for key, value in cel(
                    f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches('{NAME_PATTERN}')",
                    name_rule,
                ).items()
                if key != "reason"
            }
        ],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": f"Always {kind}."},
            "metadata": {"type": "object"},
            "spec": structural(spec),
            "status": structural(status),
        },
    }


def structural(schema: dict[str, Any]) -> dict[str, Any]:
    """The structural schema that the API server requires, made from pydantic's JSON Schema."""
    return _structural(schema, schema.get("$defs", {}))


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        return _structural({**target, **{key: value for key, value in schema.items() if key != "$ref"}}, definitions)
    if "anyOf" in schema:  # an optional field is left out, never null
        (there,) = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return _structural({**there, **rest}, definitions)
    if "const" in schema:
        schema = {**schema, "type": "string", "enum": [schema["const"]]}
    result = {key: copy.deepcopy(value) for key, value in schema.items() if key in _KEPT or key.startswith("x-")}
    if result.get("type") == "integer":
        result["format"] = "int64"
    if schema.get("properties"):
        required = schema.get("required", ())
        result["properties"] = {
            name: _with_default(_structural(field, definitions), settled=name in required or "anyOf" in field)
            for name, field in schema["properties"].items()
        }
    if "items" in schema:
        result["items"] = _without_defaults(_structural(schema["items"], definitions))
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    return result


def _without_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a list's items, whose defaults the operator applies itself; the descriptions state them.

    If the API server filled them in, a live list would differ from the applied one. Argo CD compares lists as a whole
    and would report the service as OutOfSync forever.
    """
    result = {key: value for key, value in schema.items() if key != "default"}
    default = schema.get("default")
    if default not in (None, False, "", 0, [], {}):
        result["description"] = f"{schema['description']} Default: {default}."
    if "properties" in schema:
        result["properties"] = {name: _without_defaults(field) for name, field in schema["properties"].items()}
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            result[inner] = _without_defaults(schema[inner])
    return result


def _with_default(field: dict[str, Any], *, settled: bool) -> dict[str, Any]:
    """Gives an object or array a default unless it is required or optional (`settled`).

    The default spells out the defaults inside it, because the API server validates a default before it fills it in.
    """
    if settled or "default" in field or field["type"] not in ("object", "array"):
        return field
    return {**field, "default": [] if field["type"] == "array" else _defaults_inside(field)}


def _defaults_inside(field: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = field.get("properties", {})
    return {name: copy.deepcopy(inner["default"]) for name, inner in properties.items() if "default" in inner}
