"""The requested form of a reply, in the fields of several APIs, and its grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import orjson
from pydantic import ConfigDict, Field

from ballast.errors import RequestError, shown
from ballast.grammar import source
from ballast.grammar.source import Source
from ballast.wire.field_rules import Refused, Rule
from ballast.wire.parsing import StrictModel, check_size

MAX_CHOICES = 1000
MAX_TEXT_CHARS = 1 << 14


class JsonSchema(StrictModel):
    """`response_format.json_schema`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """OpenAI's clients send it; llama.cpp's do not."""
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class _JsonForm(NamedTuple):
    schema: Mapping[str, Any]
    param: str
    strict: bool


_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def _check_type(schema: Mapping[str, Any], param: str) -> None:
    """Raises RequestError for a schema with an invalid type, as llama.cpp's server does."""
    named = schema.get("type", [])
    for each in named if isinstance(named, list) else [named]:
        if each not in _TYPES:
            raise RequestError(f"{param}: is {shown(str(each))}; it must be one of {', '.join(_TYPES)}", param=param)


class ResponseFormat(StrictModel):
    """`response_format` of OpenAI's API."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """With `json_object`, the schema of the object, as in llama.cpp's server."""

    def source(self) -> Source | None:
        """The grammar; None for free text. Raises RequestError."""
        form = self._form()
        return None if form is None else source.json_schema(form.schema, form.param, strict=form.strict)

    def embedded(self) -> str | None:
        """The grammar as a part of another one. Raises RequestError."""
        form = self._form()
        return None if form is None else source.embedded_schema(form.schema, form.param, strict=form.strict)

    def _form(self) -> _JsonForm | None:
        param = "response_format"
        if self.type == "json_schema":
            if self.json_schema is None:
                raise RequestError(f"{param}.json_schema: this field is required", param=f"{param}.json_schema")
            schema = self.json_schema.schema_
            return _JsonForm(
                _ANY_OBJECT if schema is None else schema,
                f"{param}.json_schema.schema",
                bool(self.json_schema.strict),
            )
        if self.json_schema is not None:
            raise RequestError(
                f"{param}.json_schema: is only allowed with the type json_schema", param=f"{param}.json_schema"
            )
        if self.schema_ is not None and self.type != "json_object":
            raise RequestError(f"{param}.schema: is only allowed with the type json_object", param=f"{param}.schema")
        if self.type != "json_object":
            return None
        if self.schema_ is None:
            return _JsonForm(_ANY_OBJECT, param, True)
        _check_type(self.schema_, f"{param}.schema.type")
        return _JsonForm(self.schema_, f"{param}.schema", False)


Json = dict[str, Any] | str
"""A schema, or its text."""
Pattern = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)
]
Grammar = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


class StructuredOutputs(StrictModel):
    """`structured_outputs` of vLLM's API: exactly one of its fields."""

    other_fields: ClassVar[Mapping[str, Rule]] = {
        "disable_any_whitespace": Refused("the server limits the white space in JSON", (False,)),
        "disable_additional_properties": Refused("set additionalProperties: false in the schema", (False,)),
        "structural_tag": Refused("use tools, or a Lark grammar for other forms"),
        "whitespace_pattern": Refused("the server limits the white space in JSON"),
    }

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
                for name in ("json", "json_object", "regex", "choice", "grammar")
            ]
        }
    )

    json_: Annotated[Json | None, Field(alias="json")] = None
    json_object: Literal[True] | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    """Lark, or EBNF in XGrammar's format."""

    def source(self) -> Source:
        """The grammar. Raises RequestError."""
        param = "structured_outputs"
        fields = {"json": self.json_, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        requested = [name for name, value in fields.items() if value is not None]
        if len(requested) + bool(self.json_object) != 1:
            raise RequestError(
                f"{param}: must contain exactly one of json, json_object, regex, choice, grammar", param=param
            )
        if self.json_object:
            return source.json_object(f"{param}.json_object")
        return _READERS[requested[0]](fields[requested[0]], f"{param}.{requested[0]}")


class FormFields(StrictModel):
    """The fields that request a form of the text. At most one of them may be given.

    `guided_…` are vLLM's older names; `regex`, `ebnf` and `json_schema` SGLang's; `grammar` and `json_schema` those of
    llama.cpp's server.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Json | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    guided_json_object: bool | None = None
    regex: Pattern | None = None
    ebnf: Grammar | None = None
    grammar: Grammar | None = None
    """GBNF, or Lark."""
    json_schema: Json | None = None

    def form(self) -> Source | None:
        """The grammar of the text; None for free text. Raises RequestError."""
        requested = {name: reader for name, reader in _FORMS.items() if _is_requested(getattr(self, name))}
        if self.structured_outputs is not None:
            requested["structured_outputs"] = lambda value, _: value.source()
        shape = self.response_format.source() if self.response_format else None
        if shape is not None:
            requested["response_format"] = lambda *_: shape
        if len(requested) > 1:
            second, first, *_ = sorted(requested, reverse=True)
            raise RequestError(f"{second}: excludes {first}; both define the form of the text", param=second)
        return next((reader(getattr(self, name), name) for name, reader in requested.items()), None)


def _is_requested(value: Any) -> bool:
    """Whether the field requests a form. Clients send empty texts and false for no form."""
    return value is not None and value is not False and value != ""


def _read_schema(value: Any, param: str) -> Source:
    return source.json_schema(_schema(value, param), param, strict=True)


def _read_lenient_schema(value: Any, param: str) -> Source:
    return source.json_schema(_schema(value, param), param, strict=False)


def _read_choice(value: Any, param: str) -> Source:
    if sum(map(len, value)) > MAX_TEXT_CHARS:
        raise RequestError(f"{param}: the texts have more than {MAX_TEXT_CHARS} characters", param=param)
    return source.choice(value, param)


_READERS: Mapping[str, Callable[[Any, str], Source]] = {
    "json": _read_schema,
    "regex": source.regex,
    "choice": _read_choice,
    "grammar": source.grammar,
}
_FORMS: Mapping[str, Callable[[Any, str], Source | None]] = {
    "guided_json": _read_schema,
    "guided_regex": source.regex,
    "guided_choice": _read_choice,
    "guided_grammar": source.grammar,
    "guided_json_object": lambda _, param: source.json_object(param),
    "regex": source.regex,
    "ebnf": source.grammar,
    "grammar": source.grammar,
    "json_schema": _read_lenient_schema,
}


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
