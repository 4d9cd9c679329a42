"""The real `anthropic` client against the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from ballast.wire.anthropic.request import MessagesRequest, to_chat
from ballast.wire.ignored_fields import IgnoredFields
from devkit.servers.process import ServerProcess
from devkit.servers.script_server import PARIS, ROME

if (
    TYPE_CHECKING
):  # functions import it otherwise: the import takes two seconds, and each pytest worker imports this file
    import anthropic

SCRIPT = ("devkit.servers.script_server",)
WEATHER: Any = {
    "name": "weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NO_THOUGHT: Any = {"type": "disabled"}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--chat_template", "deepseek-r1", module=SCRIPT) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def both_ways(client: anthropic.Anthropic, script: str, **fields: Any) -> anthropic.types.Message:
    """The whole reply; checks that the stream produces the same."""
    request = {
        "model": "m",
        "max_tokens": 300,
        "messages": [{"role": "user", "content": f"say {script}"}],
        **fields,
    }
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        output = stream.get_final_message()
    assert (output.stop_reason, output.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert output.usage.output_tokens == whole.usage.output_tokens
    assert [_shown(block) for block in output.content] == [_shown(block) for block in whole.content]
    return whole


def _shown(block: Any) -> dict[str, Any]:
    shown: dict[str, Any] = block.model_dump(exclude_none=True)
    return {key: value for key, value in shown.items() if key not in ("id", "citations")}


def test_reasoning_and_a_text_are_blocks(client: anthropic.Anthropic) -> None:
    message = both_ways(client, "thought")
    assert [_shown(block) for block in message.content] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": ""},
        {"type": "text", "text": "It is 4."},
    ]
    assert (message.role, message.type, message.model, message.stop_reason) == ("assistant", "message", "m", "end_turn")
    assert message.id.startswith("msg_")
    assert message._request_id
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 10


@pytest.mark.parametrize("kind", ["enabled", "adaptive"])
@pytest.mark.parametrize(
    ("display", "is_shown"), [("summarized", True), ("updates", True), (None, True), ("omitted", False)]
)
def test_reasoning_is_omitted_on_request(
    client: anthropic.Anthropic, kind: str, display: str | None, *, is_shown: bool
) -> None:
    thinking: Any = {"type": kind, "display": display} | ({"budget_tokens": 1024} if kind == "enabled" else {})
    message = both_ways(client, "thought", thinking=thinking)
    assert [block.type for block in message.content] == ["thinking", "text"][0 if is_shown else 1 :]
    assert message.usage.output_tokens > len("It is 4."), "the model reasons nevertheless"


def test_streamed_reasoning_ends_with_its_signature(server: ServerProcess) -> None:
    body = {"model": "m", "max_tokens": 300, "stream": True, "messages": [{"role": "user", "content": "say thought"}]}
    lines = httpx.post(server.url + "/v1/messages", json=body, timeout=60).text.split("\n")
    found = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    of_blocks = [(event["index"], event.get("delta", event)["type"]) for event in found if "index" in event]
    begun, last = of_blocks.index((0, "signature_delta")), of_blocks.index((0, "content_block_stop"))
    assert last == begun + 1
    assert of_blocks[last + 1] == (1, "content_block_start")
    assert (1, "signature_delta") not in of_blocks


FORMAT = {
    "type": "json_schema",
    "schema": {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False},
}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_format": FORMAT},
        {"output_config": {"format": FORMAT}},
        {"output_config": {"format": FORMAT}, "output_format": FORMAT},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_the_schema_has_two_names(client: anthropic.Anthropic, fields: dict[str, Any]) -> None:
    message = both_ways(client, "hello", thinking=NO_THOUGHT, extra_body={**fields, "temperature": 0})
    (block,) = message.content
    assert block.type == "text"
    assert json.loads(block.text) == {"a": 7}


@pytest.mark.parametrize("name", ["output_format", "output_config.format"])
def test_an_unenforceable_schema_is_rejected_by_its_field(client: anthropic.Anthropic, name: str) -> None:
    import anthropic

    wrong = {"type": "json_schema", "schema": {"type": "nonsense"}}
    fields = {"output_format": wrong} if name == "output_format" else {"output_config": {"format": wrong}}
    with pytest.raises(anthropic.BadRequestError, match=f"'{name}"):
        client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "say hello"}], extra_body=fields
        )


def test_thinking_can_be_switched_off(client: anthropic.Anthropic) -> None:
    assert [_shown(b) for b in both_ways(client, "hello", thinking=NO_THOUGHT).content] == [
        {"type": "text", "text": "hello"}
    ]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert both_ways(client, "thought", thinking=thinking).content[0].type == "thinking"


def test_tools_are_used(client: anthropic.Anthropic) -> None:
    message = both_ways(client, "calls", tools=[WEATHER], thinking=NO_THOUGHT)
    text, first, second = message.content
    assert text.type == "text"
    assert first.type == "tool_use"
    assert second.type == "tool_use"
    assert (first.name, first.input, second.input) == ("weather", json.loads(PARIS), json.loads(ROME))
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    "choice", [{"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "any", "disable_parallel_tool_use": True}]
)
def test_tools_can_be_forced(client: anthropic.Anthropic, choice: Any) -> None:
    message = both_ways(client, "call", tools=[WEATHER], tool_choice=choice, thinking=NO_THOUGHT)
    assert [block.type for block in message.content] == ["tool_use"]
    assert message.stop_reason == "tool_use"


def test_a_conversation_with_tools_continues(client: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "say thoughtful"}]
    first = client.messages.create(model="m", max_tokens=300, messages=messages, tools=[WEATHER])
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "12 °C"}]}
        for block in first.content
        if block.type == "tool_use"
    ]
    assert results
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "say thought"}]},
    ]
    second = client.messages.create(model="m", max_tokens=300, messages=messages, tools=[WEATHER], system="Be brief.")
    assert second.content[-1].type == "text"


class Trip(BaseModel):
    city: Literal["Paris", "Rome"]
    sure: bool


@pytest.mark.parametrize("thinking", [NO_THOUGHT, {"type": "adaptive"}])
def test_an_answer_follows_the_clients_model(client: anthropic.Anthropic, thinking: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "say thought"}]
    message = client.messages.parse(
        model="m",
        max_tokens=300,
        messages=messages,
        output_format=Trip,
        thinking=thinking,
        extra_body={"temperature": 0},
    )
    assert isinstance(message.parsed_output, Trip)
    assert message.stop_reason == "end_turn"
    assert [block.type for block in message.content][-1] == "text"


def test_effort_becomes_the_chats_reasoning_effort() -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    body = MessagesRequest.model_validate({**request, "output_config": {"effort": "xhigh"}})
    assert to_chat(body, IgnoredFields()).reasoning_effort == "xhigh"


def test_why_a_message_ends(client: anthropic.Anthropic) -> None:
    cut = both_ways(client, "hello", max_tokens=2, thinking=NO_THOUGHT)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    stopped = both_ways(client, "hello", stop_sequences=["zz", "ll"], thinking=NO_THOUGHT)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "ll")
    assert _shown(stopped.content[0]) == {"type": "text", "text": "he"}


def test_the_assistants_last_message_is_continued(client: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hel"}]
    message = client.messages.create(model="m", max_tokens=60, messages=messages)
    assert _shown(message.content[0]) == {"type": "text", "text": "lo"}


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    request: Any = {"model": "m", "messages": [{"role": "user", "content": "say hello"}], "system": "x"}
    counted = client.messages.count_tokens(**request, tools=[WEATHER]).input_tokens
    usage = client.messages.create(**request, tools=[WEATHER], max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert client.messages.count_tokens(**request).input_tokens < counted


CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "x", "input": {}}]}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokens": None}, "max_tokens: this field is required"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\.0\.role: is 'tool'"),
        ({"tools": [{"name": "x" * 129}]}, r"tools\.0\.name must be 1 to 128"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, r"messages\.0\.content\.0: .*only text"),
        ({"messages": [{"role": "user", "content": 1}]}, r"messages\.0\.content: must be"),
        ({"stop_sequences": [""]}, r"stop_sequences\.0: "),
        ({"tools": [{"name": "x", "input_schema": 1}]}, r"tools\.0\.input_schema must be an object"),
        ({"tools": [{"name": "x", "input_schema": {"type": "array"}}]}, r"tools\.0\.input_schema\.type is 'array'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, r"messages\.0\.content\.0\.name: "),
        ({"system": "x", "messages": [CALLED]}, r"messages\.0\.content: .*cannot be continued"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}},
            r"tool_choice\.name: no tool is named 'x'",
        ),
        ({"tool_choice": {"type": "all"}}, r"tool_choice\.type: is 'all'"),
        ({"tool_choice": {"type": ["any"]}}, r"tool_choice\.type: is \['any'\]"),
        ({"thinking": {"type": "deep"}}, r"thinking\.type: is 'deep'"),
        (
            {"output_format": {"type": "json_schema", "schema": {}}, "output_config": {"format": FORMAT}},
            r"output_format: differs from output_config\.format",
        ),
        ({"thinking": {"type": {}}}, r"thinking\.type: is {}"),
        ({"temperature": 1.5}, "temperature: "),
        ({"output_config": {"format": {"type": "json_object"}}}, r"output_config\.format\.type: "),
        ({"output_config": {"format": {"type": "json_schema"}}}, r"output_config\.format\.schema: .*required"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "thing"}}}},
            r"output_config\.format\.schema: ",
        ),
        ({"output_config": {"effort": "huge"}}, r"output_config\.effort: "),
        ({"container": "c"}, "container: this server does not run tools"),
    ],
)
def test_unsupported_values_are_refused_in_anthropics_words(
    client: anthropic.Anthropic, fields: dict[str, Any], sentence: str
) -> None:
    import anthropic

    request: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]} | fields
    with pytest.raises(anthropic.BadRequestError, match=sentence) as refused:
        client.post("/v1/messages", body=request, cast_to=object)
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["request_id"] == refused.value.request_id == refused.value.response.headers["x-request-id"]


def test_keys_and_other_errors_come_in_anthropics_envelope(tmp_path: Path) -> None:
    import anthropic

    keys = tmp_path / "keys"
    keys.write_text("right\n")
    options = ("--chat_template", "deepseek-v3", "--strict_model_name", "--api_key_file", str(keys))
    with ServerProcess(*options, module=SCRIPT) as server:

        def create(key: str, model: str = "script") -> anthropic.types.Message:
            with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
                return client.messages.create(model=model, max_tokens=9, messages=[{"role": "user", "content": "x"}])

        assert create("right").content
        with pytest.raises(anthropic.AuthenticationError) as refused:
            create("wrong")
        assert _error_type(refused.value) == "authentication_error"
        with pytest.raises(anthropic.NotFoundError) as missing:
            create("right", "other")
        assert _error_type(missing.value) == "not_found_error"


def _error_type(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    return str(body["error"]["type"])


def test_the_order_of_blocks_is_kept() -> None:
    body = MessagesRequest(
        model="m",
        system=[{"type": "text", "text": "S"}],
        messages=[
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "u"},
                    {"type": "text", "text": "c"},
                ],
            },
        ],
    )
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    assert to_chat(body, IgnoredFields()).messages == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "u", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
    ]
