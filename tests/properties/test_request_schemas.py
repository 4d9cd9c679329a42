"""/openapi.json is as strict as the server: a body that a schema forbids is rejected, and a body that it allows is
served.

Schemas cannot describe dependencies between fields, or texts that contain a grammar or JSON; such errors are listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast.engine.limits import Limits
from ballast.errors import RequestError
from ballast.families.registry import DEFAULT_FORM
from ballast.generation.request_builder import RequestBuilder
from ballast.server.app import api_app, api_routers
from ballast.text.loading import load_text
from ballast.wire.anthropic import request as anthropic
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.known_fields import shape_of
from ballast.wire.llama_cpp.request import InfillRequest, LlamaRequest, parse_llama
from ballast.wire.ollama import request as ollama
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest, parse_body
from ballast.wire.parsing import StrictModel
from ballast.wire.responses import request as responses
from devkit.long import times
from devkit.models.vocabulary import byte_metadata
from devkit.servers.script_server import TAGS

CONTEXT = 4096
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TEXT = load_text(
    None,
    byte_metadata(user_defined=(*DEFAULT_FORM.spellings.values(), *TAGS, *FIM)),
    "bytes.gguf",
    "deepseek-v3.1",
)
LIMITS = Limits(max_model_tokens=CONTEXT, max_new_tokens=256, max_batch_size=8, max_queue=256)
BUILDER = RequestBuilder(TEXT, LIMITS, trust_templates=True)
MESSAGE = [{"role": "user", "content": "a"}]

Serve = Callable[[bytes, IgnoredFields], Any]


def _messages(data: bytes, ignored: IgnoredFields) -> Any:
    return BUILDER.chat(anthropic.to_chat(anthropic.parse_messages(data, CONTEXT, ignored), ignored))


def _response(data: bytes, ignored: IgnoredFields) -> Any:
    return BUILDER.chat(responses.to_chat(responses.parse_responses(data, CONTEXT, ignored), ignored)[0])


def _ollama_chat(data: bytes, ignored: IgnoredFields) -> Any:
    body = ollama.parse_ollama(ollama.OllamaChatRequest, data, CONTEXT, ignored)
    return BUILDER.chat(ollama.chat_of(body, ignored)) if body.messages else None


def _ollama_prompt(data: bytes, ignored: IgnoredFields) -> Any:
    body = ollama.parse_ollama(ollama.OllamaGenerateRequest, data, CONTEXT, ignored)
    if body.is_text:
        return BUILDER.completion(ollama.completion_of(body, ignored))
    return BUILDER.chat(ollama.prompted_chat(body, ignored))


ROUTES: dict[str, tuple[type[StrictModel], dict[str, Any], Serve]] = {
    "/v1/chat/completions": (
        ChatCompletionRequest,
        {"messages": MESSAGE},
        lambda data, ignored: BUILDER.chat(parse_body(ChatCompletionRequest, data, CONTEXT, ignored)),
    ),
    "/v1/completions": (
        CompletionRequest,
        {"prompt": "a"},
        lambda data, ignored: BUILDER.completion(parse_body(CompletionRequest, data, CONTEXT, ignored)),
    ),
    "/v1/messages": (anthropic.MessagesRequest, {"model": "m", "messages": MESSAGE, "max_tokens": 5}, _messages),
    "/v1/responses": (responses.ResponsesRequest, {"input": "a"}, _response),
    "/completion": (
        LlamaRequest,
        {"prompt": "a"},
        lambda data, ignored: BUILDER.completion(parse_llama(LlamaRequest, data, CONTEXT, ignored)),
    ),
    "/infill": (
        InfillRequest,
        {"input_prefix": "a", "input_suffix": "b"},
        lambda data, ignored: BUILDER.infill(_infill(data, ignored)),
    ),
    "/api/chat": (ollama.OllamaChatRequest, {"model": "m", "messages": MESSAGE}, _ollama_chat),
    "/api/generate": (ollama.OllamaGenerateRequest, {"model": "m", "prompt": "a"}, _ollama_prompt),
}


def _infill(data: bytes, ignored: IgnoredFields) -> InfillRequest:
    body = parse_llama(InfillRequest, data, CONTEXT, ignored)
    assert isinstance(body, InfillRequest)
    return body


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, -2, 2, 3, 20, 21, 128, 129, 2**31, 2**62, -(2**62)),
    *(0.5, 1.0, 1.5, -0.5, 2.5, 6.0, 10.5, 100.5, "", "a", "json", "none", "auto", "low", "x" * 1025, "x" * 200),
    *([], ["a"], [""], [1], [-1], [1.0], [1.5], [[1]], [["a"]], ["a"] * 17, [True], [None], [{}], [{"a": 1}]),
    *({}, {"a": 1}, {"1": 1}, {"1": 101}, {"type": "text"}, {"type": "json_object"}, {"type": "enabled"}),
    *({"include_usage": True}, {"effort": "low"}),
]
BEYOND_SCHEMAS = re.compile(
    r"only allowed with|excludes|is more than max_tokens|set it to n|must be at least 1 without echo"
    r"|cannot be read|cannot be enforced|not valid JSON|a schema must be an object|the prompt is empty"
    r"|only a message of the assistant can be continued"
)
"""Errors about fields that depend on each other, and about the content of a text or a schema."""


@pytest.fixture(scope="module")
def validators() -> dict[str, Any]:
    """By path, from the file that a server sends."""
    document = api_app(api_routers(with_admin=True)).openapi()
    components = document["components"]
    return {
        path: jsonschema_rs.validator_for(
            {**operation["post"]["requestBody"]["content"]["application/json"]["schema"], "components": components}
        )
        for path, operation in document["paths"].items()
        if "requestBody" in operation.get("post", {})
    }


def fields_of(path: str) -> list[str]:
    kind = ROUTES[path][0]
    return sorted(shape_of(kind).known.keys() | kind.other_fields.keys())


def refusal(path: str, body: dict[str, Any]) -> str | None:
    """The server's error for a body; None if it serves it."""
    try:
        ROUTES[path][2](json.dumps(body).encode(), IgnoredFields())
    except RequestError as error:
        return error.message
    return None


def bodies(path: str) -> Iterator[dict[str, Any]]:
    """A valid body with each of its fields replaced by each value, removed, or combined with another field."""
    base = ROUTES[path][1]
    for name in base:
        yield {key: value for key, value in base.items() if key != name}
    for name in fields_of(path):
        for value in VALUES:
            yield {**base, name: value}


@pytest.mark.parametrize("path", ROUTES)
def test_a_schema_rejects_exactly_what_the_server_rejects(path: str, validators: dict[str, Any]) -> None:
    base = ROUTES[path][1]
    assert validators[path].is_valid(base)
    assert refusal(path, base) is None
    num_forbidden = 0
    for body in bodies(path):
        why = refusal(path, body)
        if validators[path].is_valid(body):
            assert why is None or BEYOND_SCHEMAS.search(why), (
                f"the schema allows {body}, but the server rejects it: {why}"
            )
        else:
            assert why is not None, f"the schema forbids {body}, but the server serves it"
            num_forbidden += 1
    assert num_forbidden > 200


@pytest.mark.parametrize("path", ROUTES)
def test_several_fields_that_a_schema_forbids_are_refused(path: str, validators: dict[str, Any]) -> None:
    base = ROUTES[path][1]

    @settings(max_examples=times(25, 100), deadline=None, derandomize=True, database=None)
    @given(st.dictionaries(st.sampled_from(fields_of(path)), st.sampled_from(VALUES), min_size=2, max_size=4))
    def agree(fields: dict[str, Any]) -> None:
        body = {**base, **fields}
        assert validators[path].is_valid(body) or refusal(path, body) is not None

    agree()
