"""Reads request bodies: JSON within limits, validated against a type, with errors that name the client's fields.

Building and validating a body's objects blocks every other thread, including the event loop. Therefore the limits are
checked before any object is built, and validation ends at the first invalid item of a list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar, get_args, get_type_hints

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails

from ballast.errors import ContextLengthError, RequestError
from ballast.text.messages import is_deeper
from ballast.wire.field_rules import Rule
from ballast.wire.field_schemas import add_rules

MAX_DEPTH = 64
MAX_NODES = 150_000
"""Maximum number of objects, arrays and fields of a body: about 50 ms to build."""
MAX_ITEMS = 1 << 20
"""Maximum number of their items, such as token ids: about 25 ms."""
MAX_FIELDS = 256
"""More than any request type has."""
MAX_TURNS = 10_000
"""Maximum number of messages, parts and calls of a conversation: half a second for a chat template."""
MAX_EXACT = 2**53
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some programs put it before all text that they write."""

Body = TypeVar("Body", bound=BaseModel)


def _whole(value: Any) -> Any:
    """Converts 3.0 to 3, because JSON has one kind of number. Floats beyond the range of exact integers stay
    unchanged."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT
    return int(value) if is_whole else value


def whole_items(value: Any) -> Any:
    """The same for each item of a list."""
    return [_whole(item) for item in value] if isinstance(value, list) and float in map(type, value) else value


Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
WHOLE = BeforeValidator(_whole)
"""For an integer, which a client may write as a float."""
WHOLE_ITEMS = BeforeValidator(whole_items)
"""For a list of integers. It may be long, so its items are converted together."""


class StrictModel(BaseModel):
    """A part of a request's body. Types are not converted. `known_fields.check_fields` handles unknown fields before
    this class drops them."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, use_attribute_docstrings=True)

    other_fields: ClassVar[Mapping[str, Rule]] = {}
    """Rules for fields that the type does not declare. A field without a rule is unknown."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        add_rules(handler.resolve_ref_schema(schema), cls.other_fields)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"has {len(value)} fields; an object may have at most {MAX_FIELDS}")
        return value


def with_fields(
    kind: type[StrictModel],
    declared: type,
    names: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> type[StrictModel]:
    """A subclass of `kind` with the fields of the dataclass `declared`, or only those in `names`: their types, bounds
    and docstrings, with other defaults for some."""
    hints = get_type_hints(declared, include_extras=True)
    schemas = TypeAdapter(declared).json_schema()["properties"]
    defaults = defaults or {}
    more: dict[str, Any] = {}
    for name in schemas if names is None else names:
        hint = Annotated[hints[name], WHOLE] if _has_integer(hints[name]) else hints[name]
        description = schemas[name].get("description")
        more[name] = (hint, Field(defaults.get(name, schemas[name].get("default")), description=description))
    return create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **more)


def _has_integer(hint: Any) -> bool:
    return hint is int or any(map(_has_integer, get_args(hint)))


def parse_json(data: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises RequestError."""
    check_size(data, "the body")
    try:
        value = orjson.loads(data.removeprefix(_BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    if is_deeper(value, MAX_DEPTH):
        raise RequestError(f"the body is nested more than {MAX_DEPTH} levels deep")
    return value


def check_size(data: bytes, what: str, param: str | None = None) -> None:
    """Raises RequestError if JSON text has too many objects or items."""
    if _holds_more(data, b"{[:", MAX_NODES):
        raise RequestError(f"{what} has more than {MAX_NODES} objects, arrays and fields; send less", param=param)
    if _holds_more(data, b",", MAX_ITEMS):
        raise RequestError(f"{what} has more than {MAX_ITEMS} items; send less", param=param)


def _holds_more(data: bytes, signs: bytes, most: int) -> bool:
    """Whether the text has more than `most` of these characters outside of strings."""
    if sum(map(data.count, signs)) <= most:
        return False  # the usual case: few of them even if strings are counted
    found = re.finditer(rb'"(?:[^"\\]++|\\.)*+"|[%b]' % re.escape(signs), data, re.DOTALL)
    outside = (True for each in found if data[each.start()] != ord('"'))
    return next(islice(outside, most, None), False)


def validated(kind: type[Body], value: Mapping[str, Any]) -> Body:
    """Convert a JSON object to `kind`. Raises RequestError, which names the first invalid field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _first_problem(error.errors(include_url=False, include_input=False), value) from None


def check_lengths(value: Mapping[str, Any], most: int) -> None:
    """Refuse lists that are too long before their items are validated: each item needs at least one token."""
    prompt = value.get("prompt")
    if isinstance(prompt, list):
        for inner in prompt if prompt and isinstance(prompt[0], list) else [prompt]:
            _check_length("prompt", len(inner) if isinstance(inner, list) else 1, most)
    for name in ("input", "messages"):
        if isinstance(turns := value.get(name), list):
            _check_length(name, len(turns), most)
            parts, calls = (_num_inside(turns, field) for field in ("content", "tool_calls"))
            _check_length(name, parts, most)
            if len(turns) + parts + calls > MAX_TURNS:
                refuse(name, f"has more than {MAX_TURNS} messages, parts and calls; send fewer")


def _num_inside(turns: list[Any], field: str) -> int:
    lists = (turn.get(field) for turn in turns if isinstance(turn, dict))
    return sum(len(each) for each in lists if isinstance(each, list))


def _check_length(name: str, length: int, most: int) -> None:
    if length > most:
        raise ContextLengthError(most, f"{name} has {length} items", param=name)


def refuse(param: str, reason: str) -> NoReturn:
    """Raises RequestError for the field with the dotted path `param`."""
    raise RequestError(f"{param}: {reason}", param=param)


def _first_problem(problems: Sequence[ErrorDetails], body: Mapping[str, Any]) -> RequestError:
    """The problem of the first invalid field. If the field has several types, that of the best match; if some match
    equally well, all that these allow."""
    of_field = [
        (problem, _client_path(problem, body)) for problem in problems if problem["loc"][:1] == problems[0]["loc"][:1]
    ]
    closest, steps = max(of_field, key=lambda each: (len(each[1]), each[0]["type"].startswith("union_tag")))
    sentences = [_sentence(closest)]
    if sentences[0].startswith(_MUST_BE):
        sentences = [_sentence(problem) for problem, path in of_field if path == steps]
    allowed = dict.fromkeys(each.removeprefix(_MUST_BE) for each in sentences if each.startswith(_MUST_BE))
    sentence = f"{_MUST_BE}{' or '.join(allowed)}" if len(allowed) > 1 else _sentence(closest)
    path = ".".join(map(str, steps))
    return RequestError(f"{path}: {sentence}" if path else sentence, param=path or None)


def _sentence(problem: ErrorDetails) -> str:
    describe = _SENTENCES.get(problem["type"])
    return describe(problem) if describe else problem["msg"][:1].lower() + problem["msg"][1:]


def _client_path(problem: ErrorDetails, body: Any) -> list[int | str]:
    """The fields and indices of a problem's path, without the type names that Pydantic inserts."""
    path: list[int | str] = []
    for step in problem["loc"]:
        if isinstance(body, Mapping) and str(step) in body:
            body = body[str(step)]
        elif isinstance(body, list) and isinstance(step, int) and step < len(body):
            body = body[step]
        else:
            continue
        path.append(step)
    return [*path, problem["loc"][-1]] if problem["type"] == "missing" else path


def _bound(value: float) -> float:
    """Pydantic has whole bounds of numbers as floats."""
    return int(value) if value == int(value) else value


def _too_short_text(least: int) -> str:
    return "must not be empty" if least == 1 else f"must have at least {least} characters"


def _too_short(least: int) -> str:
    return "must not be empty" if least == 1 else f"must have at least {least} entries"


_MUST_BE = "must be "
_SENTENCES: Mapping[str, Callable[[ErrorDetails], str]] = {
    "missing": lambda _: "this field is required",
    "string_type": lambda _: "must be a string",
    "bool_type": lambda _: "must be true or false",
    "int_type": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "literal_error": lambda problem: f"must be {problem['ctx']['expected']}",
    "greater_than_equal": lambda problem: f"must be at least {_bound(problem['ctx']['ge'])}",
    "less_than_equal": lambda problem: f"must be at most {_bound(problem['ctx']['le'])}",
    "string_too_short": lambda problem: _too_short_text(problem["ctx"]["min_length"]),
    "string_too_long": lambda problem: f"must have at most {problem['ctx']['max_length']} characters",
    "model_type": lambda _: "must be an object",
    "union_tag_not_found": lambda problem: f"must have the field {problem['ctx']['discriminator']}",
    "union_tag_invalid": lambda problem: (
        f"its {problem['ctx']['discriminator']} must be one of {problem['ctx']['expected_tags']}"
    ),
    "dict_type": lambda _: "must be an object",
    "list_type": lambda _: "must be a list",
    "too_short": lambda problem: _too_short(problem["ctx"]["min_length"]),
    "too_long": lambda problem: f"must have at most {problem['ctx']['max_length']} entries",
    "value_error": lambda problem: problem["msg"].removeprefix("Value error, "),
}
