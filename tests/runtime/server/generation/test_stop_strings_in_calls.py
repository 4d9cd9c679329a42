"""A stop string ends the content, but never a tool call."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from devkit.servers.process import ServerProcess
from devkit.servers.script_server import PARIS, ROME
from devkit.servers.sdk_client import openai_client

WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        ServerProcess("--chat_template", "deepseek-v3", module=("devkit.servers.script_server",)) as server,
        openai_client(server) as client,
    ):
        yield client


@pytest.mark.parametrize("stop", ['"city"', "}", "weather", "\n"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_that_contains_a_stop_string_is_complete(client: openai.OpenAI, stop: str, choice: Any) -> None:
    request: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "say call"}],
        "tools": [WEATHER],
        "tool_choice": choice,
        "stop": [stop],
    }
    reply = client.chat.completions.create(**request).choices[0]
    assert reply.finish_reason == "tool_calls"
    [call] = reply.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", json.loads(PARIS))
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**request, stream=True)]
    pieces = [each.function.arguments for delta in deltas for each in delta.tool_calls or ()]
    assert json.loads("".join(pieces)) == json.loads(PARIS)


def test_a_stop_string_before_a_call_ends_the_reply(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "say calls"}], "tools": [WEATHER]}
    reply = client.chat.completions.create(**request, stop=["look"]).choices[0]
    assert (reply.finish_reason, reply.message.content, reply.message.tool_calls) == ("stop", "I ", None)
    reply = client.chat.completions.create(**request, stop=["Rome"]).choices[0]
    assert [json.loads(call.function.arguments) for call in reply.message.tool_calls] == [
        json.loads(PARIS),
        json.loads(ROME),
    ]
