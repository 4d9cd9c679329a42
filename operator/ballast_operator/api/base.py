"""The base of all types of the custom resources."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel


class ApiType(BaseModel):
    """An object of the API: snake_case here, camelCase in YAML. Unknown fields are rejected."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def to_api(self) -> dict[str, Any]:
        """The object as it is written in YAML, without fields that are not set."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


def cel(
    rule: str, message: str, message_expression: str | None = None, field_path: str | None = None
) -> dict[str, Any]:
    """A validation rule in CEL, which the API server evaluates."""
    return {
        "rule": rule,
        "message": message,
        **({"messageExpression": message_expression} if message_expression else {}),
        **({"fieldPath": field_path} if field_path else {}),
        "reason": "FieldValueInvalid",
    }


def rules(*validations: dict[str, Any]) -> dict[str, Any]:
    """The rules in the form for a pydantic model's json_schema_extra."""
    return {"x-kubernetes-validations": list(validations)}


def exactly_one(*names: str) -> str:
    """A CEL expression: exactly one of these fields is set."""
    return f"[{', '.join(f'has(self.{name})' for name in names)}].filter(there, there).size() == 1"


ObjectName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
ConfigKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
RelativePath = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=1024, pattern=r"^(\.|[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*)$"
    ),
]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]
