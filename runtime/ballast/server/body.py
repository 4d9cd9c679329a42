"""Reading a request's body: JSON, bounded, checked against a type, and refused in the client's own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ballast.errors import RequestError

MAX_DEPTH = 64

Body = TypeVar("Body", bound=BaseModel)


def parse_json(data: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises RequestError."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    _check_depth(value)
    return value


def _check_depth(value: dict[str, Any]) -> None:
    """Refuse what later steps, which recurse, could not follow."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = (item for box in level for item in (box.values() if isinstance(box, dict) else box))
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return
    raise RequestError(f"the body is nested more than {MAX_DEPTH} levels deep")


def validated(kind: type[Body], value: Mapping[str, Any]) -> Body:
    """A JSON object as `kind`. Raises RequestError that names the first field that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _first_problem(error.errors(include_url=False, include_input=False), value) from None


def check_lengths(value: Mapping[str, Any], most: int) -> None:
    """Refuse what is too much from its length alone, before each item is looked at: each takes a token or more."""
    prompt, messages = value.get("prompt"), value.get("messages")
    if isinstance(prompt, list):
        for inner in prompt if prompt and isinstance(prompt[0], list) else [prompt]:
            _check_length("prompt", len(inner) if isinstance(inner, list) else 1, most)
    if isinstance(items := value.get("input"), list):
        _check_length("input", len(items), most)
    if isinstance(messages, list):
        _check_length("messages", len(messages), most)
        contents = (message.get("content") for message in messages if isinstance(message, dict))
        _check_length("messages", sum(len(content) for content in contents if isinstance(content, list)), most)


def _check_length(name: str, length: int, most: int) -> None:
    if length > most:
        raise RequestError(
            f"This model's maximum context length is {most} tokens. However, {name} holds {length} items. "
            "Shorten the prompt.",
            param=name,
            code="context_length_exceeded",
        )


def _first_problem(problems: Sequence[ErrorDetails], body: Mapping[str, Any]) -> RequestError:
    """Of the first field that is wrong. Where a field may be one of several things, the one that fits furthest."""
    of_field = [problem for problem in problems if problem["loc"][:1] == problems[0]["loc"][:1]]
    problem = max(of_field, key=lambda each: (len(_client_path(each, body)), each["type"].startswith("union_tag")))
    path = ".".join(map(str, _client_path(problem, body)))
    say = _SENTENCES.get(problem["type"])
    sentence = say(problem) if say else problem["msg"][:1].lower() + problem["msg"][1:]
    return RequestError(f"{path}: {sentence}" if path else sentence, param=path or None)


def _client_path(problem: ErrorDetails, body: Any) -> list[int | str]:
    """Pydantic puts the names of its own types among the steps; what the client wrote, or forgot, are fields and
    indices."""
    path: list[int | str] = []
    for step in problem["loc"]:
        if isinstance(body, Mapping) and str(step) in body:
            body = body[str(step)]
        elif isinstance(body, list) and isinstance(step, int):
            body = body[step]
        else:
            continue
        path.append(step)
    return [*path, problem["loc"][-1]] if problem["type"] == "missing" else path


_SENTENCES: Mapping[str, Callable[[ErrorDetails], str]] = {
    "missing": lambda _: "this field is required",
    "extra_forbidden": lambda _: "this server does not know this field; leave it out",
    "model_type": lambda _: "must be an object",
    "union_tag_not_found": lambda problem: f"{problem['ctx']['discriminator']} is missing in it",
    "union_tag_invalid": lambda problem: (
        f"its {problem['ctx']['discriminator']} must be one of {problem['ctx']['expected_tags']}"
    ),
    "dict_type": lambda _: "must be an object",
    "list_type": lambda _: "must be a list",
    "too_short": lambda problem: f"must have at least {problem['ctx']['min_length']} entries",
    "too_long": lambda problem: f"must have at most {problem['ctx']['max_length']} entries",
    "value_error": lambda problem: problem["msg"].removeprefix("Value error, "),
}
