"""Replies of Qwen3.6, which reasons first and writes calls as tags, in all four APIs, through the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from devkit.servers.process import ServerProcess
from devkit.servers.script_server import PARIS

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "note": {"type": "string"}, "sure": {"type": "boolean"}},
}
FUNCTION = {"name": "weather", "description": "Weather.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
ROME = '{"city": "Rome", "note": "x"}'
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        ServerProcess("--chat_template", "qwen3.6", module=("devkit.servers.script_server",)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chat(http: httpx.Client, script: str, **more: Any) -> Any:
    (choice,) = post(http, "/v1/chat/completions", messages=user(script), **more)["choices"]
    return choice["message"]


def user(script: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"say {script}"}]


def limited(*, strict: bool) -> dict[str, Any]:
    """A tool whose arguments have few possible values, so that calls end although the grammar overrides the script."""
    properties = {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {**FUNCTION, "parameters": parameters, "strict": strict}}


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]


def test_openai(http: httpx.Client) -> None:
    message = chat(http, "thought")
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "It is 4.")
    message = chat(http, "bare_call", tools=[TOOL])
    assert (message["reasoning_content"], message["content"].strip()) == ("Where?", "I look.")
    assert calls_of(message) == [("weather", PARIS)]


def test_calls_may_follow_reasoning_that_is_not_closed(http: httpx.Client) -> None:
    message = chat(http, "bare_calls", tools=[TOOL])
    assert message["reasoning_content"] == "Where?"
    assert not message["content"]
    assert calls_of(message) == [("weather", PARIS), ("weather", ROME)]


def test_an_opened_call_is_of_a_declared_tool_with_valid_arguments(http: httpx.Client) -> None:
    """The model tries to call a tool without a name."""
    fields = {"tools": [limited(strict=False)], "temperature": 0, "parallel_tool_calls": False}
    message = chat(http, "bare_broken", **fields)
    ((name, arguments),) = calls_of(message)
    assert (message["reasoning_content"], name) == ("Where?", "weather")
    assert json.loads(arguments).keys() == {"city", "sure"}


def test_openai_streams_the_same(http: httpx.Client) -> None:
    body = {"messages": user("bare_calls"), "tools": [TOOL], "stream": True}
    lines = [line.removeprefix("data: ") for line in http.post("/v1/chat/completions", json=body).text.split("\n")]
    chunks = [json.loads(line) for line in lines if line.startswith("{")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Where?"
    assert not any(delta.get("content") for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["function"]["name"] for call in calls if call["function"].get("name")] == ["weather", "weather"]
    for index, arguments in enumerate((PARIS, ROME)):
        own = [call["function"].get("arguments") or "" for call in calls if call["index"] == index]
        assert "".join(own) == arguments


def test_responses(http: httpx.Client) -> None:
    fields = {"input": "say bare_call", "tools": [{"type": "function", **FUNCTION}]}
    output = post(http, "/v1/responses", **fields)["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert (output[2]["name"], output[2]["arguments"]) == ("weather", PARIS)
    forced = post(http, "/v1/responses", **fields, tool_choice={"type": "function", "name": "weather"})["output"]
    assert [item["name"] for item in forced if item["type"] == "function_call"] == ["weather"]


def test_anthropic(http: httpx.Client) -> None:
    tools = [{"name": "weather", "description": "Weather.", "input_schema": PARAMETERS}]
    fields = {"messages": user("bare_call"), "tools": tools, "max_tokens": 500}
    reply = post(http, "/v1/messages", model="m", **fields)
    thinking, text, call = reply["content"]
    assert (thinking["thinking"], text["text"].strip()) == ("Where?", "I look.")
    assert (call["name"], call["input"], reply["stop_reason"]) == ("weather", json.loads(PARIS), "tool_use")
    forced = post(http, "/v1/messages", model="m", **fields, tool_choice={"type": "tool", "name": "weather"})
    assert [part["name"] for part in forced["content"] if part["type"] == "tool_use"] == ["weather"]


def test_ollama(http: httpx.Client) -> None:
    fields = {"messages": user("bare_call"), "tools": [TOOL], "stream": False, "think": True}
    message = post(http, "/api/chat", model="m", **fields)["message"]
    assert (message["thinking"], message["content"].strip()) == ("Where?", "I look.")
    assert message["tool_calls"][0]["function"]["arguments"] == json.loads(PARIS)


@pytest.mark.parametrize("thinking", [{}, OFF], ids=["thinking", "off"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_required_call_is_made_and_an_answer_has_its_form(
    http: httpx.Client, strict: bool, thinking: dict[str, Any]
) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        tools = [limited(strict=strict)]
        fields = {"tools": tools, "tool_choice": choice, "temperature": 0, "parallel_tool_calls": False, **thinking}
        message = chat(http, "bare_call", **fields)
        ((name, arguments),) = calls_of(message)
        assert name == "weather"
        values = json.loads(arguments)
        assert (values["city"] in ("Paris", "Rome"), values["sure"] in (True, False)) == (True, True)
        assert not (message["content"] or "").strip()
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"enum": [1, 22]}}}
    message = chat(http, "thought", response_format=form, temperature=0, **thinking)
    assert message["content"] in ("1", "22")
    assert message.get("reasoning_content") == (None if thinking else "Let me see.")


def test_variables_of_the_template_have_an_effect_or_are_reported(http: httpx.Client) -> None:
    body = {"messages": user("hello"), "chat_template_kwargs": {"preserve_thinking": True, "clear_thinking": True}}
    response = http.post("/v1/chat/completions", json=body)
    assert response.headers["X-Ballast-Ignored"] == "chat_template_kwargs.clear_thinking"


@pytest.mark.parametrize(
    ("path", "part", "more"),
    [
        ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {}),
        ("/v1/chat/completions", {"type": "video_url", "video_url": {"url": "http://x/v.mp4"}}, {}),
        (
            "/v1/messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"max_tokens": 9, "model": "m"},
        ),
        ("/v1/responses", {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, {}),
    ],
)
def test_images_are_rejected_by_name(http: httpx.Client, path: str, part: dict[str, Any], more: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [part]}]
    field = "input" if path == "/v1/responses" else "messages"
    response = http.post(path, json={field: messages, **more})
    assert response.status_code == 400
    assert part["type"] in response.json()["error"]["message"]


def test_ollamas_images_are_rejected_by_name(http: httpx.Client) -> None:
    message = {"role": "user", "content": "What is this?", "images": ["AAAA"]}
    response = http.post("/api/chat", json={"model": "m", "messages": [message], "stream": False})
    assert response.status_code == 400
    assert "images" in response.json()["error"]
