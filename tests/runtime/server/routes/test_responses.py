"""/v1/responses of the real server, as the `openai` client sees it."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from devkit.models.vocabulary import EOS
from devkit.servers.process import ServerProcess
from devkit.servers.script_server import PARIS
from devkit.servers.sdk_client import openai_client

SCRIPT = ("devkit.servers.script_server",)
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
NO_THOUGHT: Any = {"effort": "none"}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        ServerProcess("--chat_template", "deepseek-r1", module=SCRIPT) as server,
        openai_client(server) as client,
    ):
        yield client


def both_ways(client: openai.OpenAI, script: str, **fields: Any) -> Response:
    """The whole response; checks that the stream produces the same."""
    request = {"model": "m", "input": f"say {script}", **fields}
    whole = client.responses.create(**request)
    events = list(client.responses.create(**request, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    reported_text = last.response
    assert [_shown(item) for item in reported_text.output] == [_shown(item) for item in whole.output]
    for item in reported_text.output:
        deltas = [event.delta for event in events if "delta" in event.type and event.item_id == item.id]
        assert "".join(deltas) == _text(item)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [_shown(item) for item in done] == [_shown(item) for item in reported_text.output]
    return whole


def _shown(item: Any) -> dict[str, Any]:
    return {key: value for key, value in item.model_dump(exclude_none=True).items() if key not in ("id", "call_id")}


def _text(item: Any) -> str:
    return item.arguments if item.type == "function_call" else "".join(part.text for part in item.content)


def test_reasoning_and_a_message_are_items(client: openai.OpenAI) -> None:
    response = both_ways(client, "thought", instructions="Be brief.", metadata={"a": "b"})
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert [_text(item) for item in response.output] == ["Let me see.", "It is 4."]
    assert response.output_text == "It is 4."
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert (response.instructions, response.metadata, response.model) == ("Be brief.", {"a": "b"}, "m")
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len("Let me see.\n")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_nothing_is_stored(client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input="say hello", store=True, reasoning=NO_THOUGHT)
    assert response.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_response_that_is_cut_short_is_incomplete(client: openai.OpenAI) -> None:
    response = both_ways(client, "hello", reasoning=NO_THOUGHT, max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "he"
    (message,) = response.output
    assert message.status == "incomplete"


def test_a_response_truncated_in_a_later_item_has_complete_earlier_items(client: openai.OpenAI) -> None:
    whole = both_ways(client, "thought", max_output_tokens=len("Let me see.</think>It"))
    assert [item.status for item in whole.output] == ["completed", "incomplete"]
    thinking = both_ways(client, "thought", max_output_tokens=5)
    assert [(item.type, item.status) for item in thinking.output] == [("reasoning", "incomplete")]
    assert _text(thinking.output[0]) == "Let m"


WEATHER_ALONE = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "weather"}, WEATHER_ALONE])
def test_a_function_is_called(client: openai.OpenAI, choice: Any) -> None:
    response = both_ways(client, "call", tools=[WEATHER], tool_choice=choice, reasoning=NO_THOUGHT)
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", PARIS)


def test_a_conversation_continues(client: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "say thoughtful"}]
    first = client.responses.create(model="m", input=items, tools=[WEATHER])
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items += [
        {"type": "function_call_output", "call_id": item.call_id, "output": "12 °C"}
        for item in first.output
        if item.type == "function_call"
    ]
    items += [{"role": "user", "content": [{"type": "input_text", "text": "say thought"}]}]
    second = client.responses.create(model="m", input=items, tools=[WEATHER])
    assert second.output_text == "It is 4."


def test_an_answer_follows_a_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"const": True}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    response = both_ways(client, "hello", text=text, reasoning=NO_THOUGHT, temperature=0)
    assert json.loads(response.output_text) == {"ok": True}


def test_log_probabilities_come_with_the_text(client: openai.OpenAI) -> None:
    fields: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = both_ways(client, "thought", **fields)
    (part,) = response.output[-1].content
    assert part.text == "It is 4."
    assert "".join(entry.token for entry in part.logprobs) == part.text + EOS
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    events = list(client.responses.create(model="m", input="say thought", stream=True, **fields))
    deltas = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert "".join(entry.token for entry in deltas) == part.text + EOS
    (plain,) = both_ways(client, "thought").output[-1].content
    assert plain.logprobs == []


def test_fields_of_vllms_are_read_as_a_chats(client: openai.OpenAI) -> None:
    stopped = client.responses.create(
        model="m", input="say hello", reasoning=NO_THOUGHT, extra_body={"stop": "l", "seed": 1, "request_id": "mine"}
    )
    assert (stopped.output_text, stopped.id) == ("he", "resp_mine")
    red = {"structured_outputs": {"choice": ["red"]}, "chat_template_kwargs": {"x": 1}}
    response = client.responses.create(model="m", input="a", reasoning=NO_THOUGHT, extra_body=red)
    assert response.output_text == "red"
    cut = client.responses.create(model="m", input="say thought", extra_body={"thinking_token_budget": 3})
    assert _text(cut.output[0]) == "Let"


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "min_p", "min_tokens", "stop_token_ids"])
def test_sampling_options_match_those_of_a_chat(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model="m", input="a", extra_body={name: "x"})
    assert refusal.value.param == name


def test_an_input_that_is_too_long_is_truncated_on_request(client: openai.OpenAI) -> None:
    body: Any = {"input": "x" * 70_000 + "say hello", "reasoning": NO_THOUGHT, "truncation": "auto"}
    response = client.responses.create(model="m", max_output_tokens=20, **body)
    assert (response.output_text, response.truncation) == ("hello", "auto")


def test_the_clients_helper_reads_the_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="say thought") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == "It is 4."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"include": ["everything"]}, "include.0"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"seed": "x"}, "seed"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [1]}]}, "tools.0.tools.0"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c"}]}, "input.0.name"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": [], "text": "x"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "reasoning", "content": 1}]}, "input.0.content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input.0.name"),
        ({"input": []}, "input"),
        ({"tools": [WEATHER | {"name": "no name"}]}, "tools.0.name"),
        ({"tools": [WEATHER | {"parameters": {"type": "banana"}}]}, "tools.0.parameters.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": None}}}, "text.format.schema"),
        (
            {"tools": [WEATHER], "tool_choice": {**WEATHER_ALONE, "tools": [{"type": "function"}]}},
            "tool_choice.tools.0.name",
        ),
        ({"tools": [WEATHER], "tool_choice": {**WEATHER_ALONE, "mode": "none"}}, "tool_choice.mode"),
        ({"tools": [WEATHER | {"name": "other"}], "tool_choice": WEATHER_ALONE}, "tool_choice.tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"truncation": "some"}, "truncation"),
        ({"moderation": {}}, "moderation"),
    ],
)
def test_unsupported_values_are_refused_by_name(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/responses", body={"model": "m", "input": "x"} | fields, cast_to=object)
    assert (refused.value.param or "").startswith(param)


def test_an_input_that_is_too_long_is_rejected_with_the_clients_field_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="or lower max_output_tokens") as refused:
        client.responses.create(model="m", input="x " * 100_000, max_output_tokens=5)
    assert refused.value.param == "input"


def test_input_tokens_are_those_of_the_response(client: openai.OpenAI) -> None:
    requested: dict[str, Any] = {"input": [{"role": "user", "content": "say hello"}], "instructions": "Be brief."}
    for more in ({}, {"tools": [WEATHER]}, {"reasoning": NO_THOUGHT}):
        counted = client.responses.input_tokens.count(model="m", **requested, **more)
        assert counted.object == "response.input_tokens"
        whole = client.responses.create(model="m", max_output_tokens=1, **requested, **more)
        assert whole.usage is not None
        assert counted.input_tokens == whole.usage.input_tokens


def test_uncountable_inputs_are_rejected_by_name(client: openai.OpenAI) -> None:
    for fields, param in (({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"), ({}, "input")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.post("/responses/input_tokens", body={"model": "m", **fields}, cast_to=object)
        assert refused.value.param == param
