"""Replies of Mistral models, whose calls have no end mark, in all four APIs, through the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from devkit.servers.process import ServerProcess
from devkit.servers.script_server import PARIS

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "note": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Weather.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        ServerProcess("--chat_template", "mistral-small-4", module=("devkit.servers.script_server",)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def user(script: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"say {script}"}]


def test_openai(http: httpx.Client) -> None:
    (choice,) = post(http, "/v1/chat/completions", messages=user("named_thought"))["choices"]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Let me see.", "It is 4.")
    (choice,) = post(http, "/v1/chat/completions", messages=user("named_call"), tools=[TOOL])["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Where?", "I look.")
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "weather", "arguments": PARIS}]
    assert choice["finish_reason"] == "tool_calls"


def test_openai_streams_the_same(http: httpx.Client) -> None:
    body = {"messages": user("named_call"), "tools": [TOOL], "stream": True}
    lines = [line.removeprefix("data: ") for line in http.post("/v1/chat/completions", json=body).text.split("\n")]
    chunks = [json.loads(line) for line in lines if line.startswith("{")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Where?"
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["name"] for call in calls if call.get("name")] == ["weather"]
    assert "".join(call.get("arguments") or "" for call in calls) == PARIS


def test_responses(http: httpx.Client) -> None:
    fields = {"input": "say named_call", "tools": [{"type": "function", **FUNCTION}]}
    output = post(http, "/v1/responses", **fields)["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert (output[2]["name"], output[2]["arguments"]) == ("weather", PARIS)
    forced = post(http, "/v1/responses", **fields, tool_choice={"type": "function", "name": "weather"})["output"]
    assert [item["name"] for item in forced if item["type"] == "function_call"] == ["weather"]


def test_anthropic(http: httpx.Client) -> None:
    tools = [{"name": "weather", "description": "Weather.", "input_schema": PARAMETERS}]
    fields = {"messages": user("named_call"), "tools": tools, "max_tokens": 500}
    reply = post(http, "/v1/messages", model="m", **fields)
    thinking, text, call = reply["content"]
    assert (thinking["thinking"], text["text"]) == ("Where?", "I look.")
    assert (call["name"], call["input"], reply["stop_reason"]) == ("weather", json.loads(PARIS), "tool_use")
    forced = post(http, "/v1/messages", model="m", **fields, tool_choice={"type": "tool", "name": "weather"})
    assert [part["name"] for part in forced["content"] if part["type"] == "tool_use"] == ["weather"]


def test_ollama(http: httpx.Client) -> None:
    fields = {"messages": user("named_call"), "tools": [TOOL], "stream": False, "think": True}
    message = post(http, "/api/chat", model="m", **fields)["message"]
    assert (message["thinking"], message["content"]) == ("Where?", "I look.")
    assert message["tool_calls"][0]["function"]["arguments"] == json.loads(PARIS)


def test_a_required_call_is_made_and_an_answer_has_its_form(http: httpx.Client) -> None:
    for choice in ("required", CALL):
        fields = {"messages": user("named_call"), "tools": [TOOL], "tool_choice": choice, "temperature": 0}
        (made,) = post(http, "/v1/chat/completions", **fields)["choices"]
        assert [call["function"]["name"] for call in made["message"]["tool_calls"]] == ["weather"]
        assert not made["message"]["content"]
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"enum": [1, 22]}}}
    for effort, reasoning in (("none", None), ("high", "Let me see.")):
        body = {"messages": user("named_thought"), "response_format": form, "temperature": 0}
        (made,) = post(http, "/v1/chat/completions", **body, reasoning_effort=effort)["choices"]
        assert made["message"]["content"] in ("1", "22")
        assert made["message"].get("reasoning_content") == reasoning


def test_images_are_rejected_by_name(http: httpx.Client) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    response = http.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert "image_url" in response.json()["error"]["message"]
