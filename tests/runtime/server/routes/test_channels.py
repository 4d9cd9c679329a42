"""Replies on channels (gpt-oss) in all four APIs, through the real server."""

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


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    options = ("--chat_template", "gpt-oss", "--prompt_date", "2025-08-06")
    with (
        ServerProcess(*options, module=("devkit.servers.script_server",)) as server,
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
    (choice,) = post(http, "/v1/chat/completions", messages=user("on_channels"))["choices"]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Let me see.", "It is 4.")
    assert choice["finish_reason"] == "stop"
    (choice,) = post(http, "/v1/chat/completions", messages=user("channel_call"), tools=[TOOL])["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Where?", "I look.")
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": PARIS}
    assert choice["finish_reason"] == "tool_calls"


def test_openai_streams_the_same(http: httpx.Client) -> None:
    body = {"messages": user("channel_call"), "tools": [TOOL], "stream": True}
    lines = [line.removeprefix("data: ") for line in http.post("/v1/chat/completions", json=body).text.split("\n")]
    chunks = [json.loads(line) for line in lines if line.startswith("{")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Where?"
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["name"] for call in calls if call.get("name")] == ["weather"]
    assert "".join(call.get("arguments") or "" for call in calls) == PARIS


def test_reasoning_stays_in_the_content_on_request(http: httpx.Client) -> None:
    body = {"messages": user("on_channels"), "separate_reasoning": False}
    (choice,) = post(http, "/v1/chat/completions", **body)["choices"]
    assert choice["message"]["content"] == "<|channel|>analysis<|message|>Let me see.<|end|>It is 4."


def test_responses(http: httpx.Client) -> None:
    tools = [{"type": "function", **FUNCTION}]
    output = post(http, "/v1/responses", input="say channel_call", tools=tools)["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert output[0]["content"][0]["text"] == "Where?"
    assert output[1]["content"][0]["text"] == "I look."
    assert (output[2]["name"], output[2]["arguments"]) == ("weather", PARIS)


def test_anthropic(http: httpx.Client) -> None:
    tools = [{"name": "weather", "description": "Weather.", "input_schema": PARAMETERS}]
    fields = {"messages": user("channel_call"), "tools": tools, "max_tokens": 500}
    reply = post(http, "/v1/messages", model="m", **fields)
    thinking, text, call = reply["content"]
    assert (thinking["thinking"], text["text"]) == ("Where?", "I look.")
    assert (call["name"], call["input"], reply["stop_reason"]) == ("weather", json.loads(PARIS), "tool_use")


def test_ollama(http: httpx.Client) -> None:
    fields = {"messages": user("channel_call"), "tools": [TOOL], "stream": False, "think": "low"}
    message = post(http, "/api/chat", model="m", **fields)["message"]
    assert (message["thinking"], message["content"]) == ("Where?", "I look.")
    assert message["tool_calls"][0]["function"]["arguments"] == json.loads(PARIS)


def test_a_required_call_is_made_and_an_answer_has_its_form(http: httpx.Client) -> None:
    fields = {"messages": user("channel_call"), "tools": [TOOL], "tool_choice": "required"}
    (choice,) = post(http, "/v1/chat/completions", **fields, temperature=0)["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"enum": [1, 22]}}}
    for more in ({}, {"reasoning_effort": "none"}):
        body = {"messages": user("on_channels"), "response_format": form, "temperature": 0, **more}
        (choice,) = post(http, "/v1/chat/completions", **body)["choices"]
        assert choice["message"]["content"] in ("1", "22")
        assert choice["message"].get("reasoning_content") == (None if more else "Let me see.")
