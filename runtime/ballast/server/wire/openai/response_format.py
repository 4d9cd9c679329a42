"""The requested form of a reply (`response_format`, `structured_outputs`), and the grammar for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import Field

from ballast.errors import RequestError
from ballast.grammar import source
from ballast.grammar.source import Source
from ballast.server.wire.parsing import StrictModel, check_size

MAX_CHOICES = 1000
MAX_TEXT_CHARS = 1 << 14


class JsonSchema(StrictModel):
    """`response_format.json_schema`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class _Asked(NamedTuple):
    schema: Mapping[str, Any]
    param: str
    strict: bool


_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class ResponseFormat(StrictModel):
    """`response_format` of OpenAI's API."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def source(self) -> Source | None:
        """Its grammar; None for free text. Raises RequestError."""
        asked = self._asked()
        return None if asked is None else source.json_schema(asked.schema, asked.param, strict=asked.strict)

    def embedded(self) -> str | None:
        """Its grammar as a part of another. Raises RequestError."""
        asked = self._asked()
        return None if asked is None else source.embedded_schema(asked.schema, asked.param, strict=asked.strict)

    def _asked(self) -> _Asked | None:
        param = "response_format"
        if self.type == "json_schema":
            if self.json_schema is None:
                raise RequestError(f"{param}.json_schema: this field is required", param=f"{param}.json_schema")
            schema = self.json_schema.schema_
            return _Asked(
                _ANY_OBJECT if schema is None else schema,
                f"{param}.json_schema.schema",
                bool(self.json_schema.strict),
            )
        if self.json_schema is not None:
            raise RequestError(
                f"{param}.json_schema: only goes with the type json_schema", param=f"{param}.json_schema"
            )
        return _Asked(_ANY_OBJECT, param, True) if self.type == "json_object" else None


class StructuredOutputs(StrictModel):
    """`structured_outputs` of vLLM's API: exactly one of its fields."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: Literal[True] | None = None
    regex: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None = None
    choice: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)
        ]
        | None
    ) = None

    def source(self) -> Source:
        """Its grammar. Raises RequestError."""
        param = "structured_outputs"
        asked = [value for value in (self.json_, self.json_object, self.regex, self.choice) if value is not None]
        if len(asked) != 1:
            raise RequestError(f"{param}: must hold exactly one of json, json_object, regex, choice", param=param)
        if self.regex is not None:
            return source.regex(self.regex, f"{param}.regex")
        if self.choice is not None:
            if sum(map(len, self.choice)) > MAX_TEXT_CHARS:
                raise RequestError(
                    f"{param}.choice: the texts have more than {MAX_TEXT_CHARS} characters", param=f"{param}.choice"
                )
            return source.choice(self.choice, f"{param}.choice")
        if self.json_ is not None:
            return source.json_schema(_schema(self.json_, f"{param}.json"), f"{param}.json", strict=True)
        return source.json_object(f"{param}.json_object")


def _schema(value: dict[str, Any] | str, param: str) -> dict[str, Any]:
    if isinstance(value, str):
        check_size(value.encode(), f"{param}: the schema", param)
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise RequestError(f"{param}: not valid JSON: {error}", param=param) from None
    if not isinstance(value, dict):
        raise RequestError(f"{param}: a schema must be an object", param=param)
    return value
