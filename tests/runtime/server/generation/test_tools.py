"""Reasoning and tool calls through the real server, as the `openai` client sees them."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from devkit.models.vocabulary import EOS
from devkit.servers.process import ServerProcess
from devkit.servers.script_server import PARIS, ROME
from devkit.servers.sdk_client import openai_client

SCRIPT = ("devkit.servers.script_server",)
R1 = ("--chat_template", "deepseek-r1")
NO_THOUGHT = {"thinking": {"type": "disabled"}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SHORT = {
    "type": "function",
    "function": {
        "name": "short",
        "parameters": {
            "type": "object",
            "properties": {"sure": {"type": "boolean"}},
            "required": ["sure"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def r1() -> Iterator[ServerProcess]:
    with ServerProcess(*R1, module=SCRIPT) as process:
        yield process


@pytest.fixture(scope="module")
def v3() -> Iterator[ServerProcess]:
    with ServerProcess("--chat_template", "deepseek-v3", module=SCRIPT) as process:
        yield process


def both_ways(server: ServerProcess, script: str, **fields: Any) -> ChatCompletion:
    """The whole reply; checks that the stream produces the same."""
    request = {"model": "m", "messages": [{"role": "user", "content": f"say {script}"}], "seed": 3, **fields}
    with openai_client(server) as client:
        whole = client.chat.completions.create(**request)
        chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        for choice in chunk.choices:
            # A truncated reply is an error for users who let the client parse it.
            choice.finish_reason = "stop" if choice.finish_reason == "length" else choice.finish_reason
        state.handle_chunk(chunk)
    output, message = state.current_completion_snapshot, whole.choices[0].message
    assert output.usage is not None
    assert whole.usage is not None
    assert output.usage.completion_tokens == whole.usage.completion_tokens
    assert output.usage.completion_tokens_details == whole.usage.completion_tokens_details
    streamed = output.choices[0].message
    assert (streamed.content or "") == (message.content or "")
    assert (streamed.model_extra or {}).get("reasoning_content") == (message.model_extra or {}).get("reasoning_content")
    calls = message.tool_calls or []
    assert [(c.function.name, c.function.arguments) for c in streamed.tool_calls or []] == [
        (c.function.name, c.function.arguments) for c in calls
    ]
    for call in calls:
        assert (call.type, call.id[:5]) == ("function", "call_")
    assert len({call.id for call in calls}) == len(calls)
    return whole


def test_reasoning_is_split_from_the_content_and_counted(r1: ServerProcess) -> None:
    reply = both_ways(r1, "thought")
    message = reply.choices[0].message
    assert message.model_extra == {"reasoning_content": "Let me see."}
    assert (message.content, message.tool_calls, reply.choices[0].finish_reason) == ("It is 4.", None, "stop")
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == len("Let me see.\n")


def test_log_probabilities_of_the_reasoning_are_apart(r1: ServerProcess) -> None:
    request: Any = {"messages": [{"role": "user", "content": "say thought"}], "logprobs": True, "temperature": 0}
    with openai_client(r1) as client:
        whole = [client.chat.completions.create(model="m", **request).choices[0]]
        stream = [
            choice
            for chunk in client.chat.completions.create(model="m", stream=True, **request)
            for choice in chunk.choices
        ]

    def text(choices: Any, field: str) -> str:
        found = [(choice.logprobs.model_dump() if choice.logprobs else {}).get(field) or [] for choice in choices]
        return b"".join(bytes(token["bytes"]) for tokens in found for token in tokens).decode()

    for choices in (whole, stream):
        assert text(choices, "reasoning_content") == "Let me see.\n</think>\n\n"
        assert text(choices, "content") == "It is 4." + EOS


def test_reasoning_that_is_cut_short_is_reasoning(r1: ServerProcess) -> None:
    reply = both_ways(r1, "endless", max_tokens=11)
    assert reply.choices[0].message.content is None
    assert reply.choices[0].message.model_extra == {"reasoning_content": "Let me see."}
    assert reply.choices[0].finish_reason == "length"


def test_a_model_that_opens_its_thought_itself_is_understood(v3: ServerProcess) -> None:
    reply = both_ways(v3, "tagged")
    assert reply.choices[0].message.content == "It is 4."
    assert reply.choices[0].message.model_extra == {"reasoning_content": "Let me see."}


def test_a_model_with_disabled_reasoning_has_no_reasoning(r1: ServerProcess) -> None:
    reply = both_ways(r1, "hello", extra_body={"thinking": {"type": "disabled"}})
    assert (reply.choices[0].message.content, reply.choices[0].message.model_extra) == ("hello", {})


SWITCHED_OFF: list[dict[str, Any]] = [
    {"thinking": {"type": "disabled"}},
    {"thinking": False},
    {"enable_thinking": False},
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"thinking": False}},
]


@pytest.mark.parametrize("switch", [*SWITCHED_OFF, {}])
@pytest.mark.parametrize(
    "held",
    [
        {"structured_outputs": {"regex": "[a-z]{3}"}},
        {"tools": [SHORT], "tool_choice": "required", "parallel_tool_calls": False},
    ],
    ids=["shape", "call"],
)
def test_a_structured_reply_thinks_first_only_if_requested(
    v3: ServerProcess, held: dict[str, Any], switch: dict[str, Any]
) -> None:
    """The model always tries to begin with reasoning."""
    (choice,) = both_ways(v3, "tagged", max_tokens=400, temperature=0, extra_body={**held, **switch}).choices
    assert choice.message.model_extra == {}
    assert (len(choice.message.content or ""), len(choice.message.tool_calls or [])) in ((3, 0), (0, 1))


def test_without_reasoning_a_structured_reply_begins_right_after_a_tool_result(r1: ServerProcess) -> None:
    """R1's prompt has no tag there, so a reply would begin with reasoning."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "say object"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12"},
    ]
    shape = {"response_format": {"type": "json_object"}, "extra_body": NO_THOUGHT}
    (choice,) = both_ways(r1, "", messages=messages, **shape).choices
    assert (choice.message.content, choice.message.model_extra) == ('{"a": 1}', {})


def test_a_stop_string_that_is_a_tag_ends_the_reasoning(r1: ServerProcess) -> None:
    reply = both_ways(r1, "thought", stop=["</think>"])
    assert reply.choices[0].message.content is None
    assert reply.choices[0].finish_reason == "stop"


def test_a_text_completion_keeps_the_tags(r1: ServerProcess) -> None:
    with openai_client(r1) as client:
        reply = client.completions.create(model="m", prompt="say thought.", max_tokens=60)
    assert reply.choices[0].text == "Let me see.\n</think>\n\nIt is 4."


@pytest.mark.parametrize(
    ("field", "output"),
    [
        ("reasoning", {"reasoning": "Let me see."}),
        ("both", {"reasoning_content": "Let me see.", "reasoning": "Let me see."}),
        ("none", {}),
    ],
)
def test_the_operator_chooses_where_reasoning_goes(field: str, output: dict[str, str]) -> None:
    with (
        ServerProcess(*R1, "--force_think", "--reasoning_field", field, module=SCRIPT) as server,
        openai_client(server) as client,
    ):
        messages = [{"role": "user", "content": "say thought"}]
        message = client.chat.completions.create(model="m", messages=messages).choices[0].message
    assert message.model_extra == output
    assert message.content == ("It is 4." if output else "<think>\nLet me see.\n</think>\n\nIt is 4.")


@pytest.mark.parametrize("script", ["call", "v31"])
def test_a_tool_is_called(v3: ServerProcess, script: str) -> None:
    choice = both_ways(v3, script, tools=[WEATHER]).choices[0]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("weather", PARIS)


def test_tools_are_called_in_parallel_after_a_word_about_it(v3: ServerProcess) -> None:
    choice = both_ways(v3, "calls", tools=[WEATHER]).choices[0]
    assert choice.message.content == "I look it up.\n\n"
    assert [call.function.arguments for call in choice.message.tool_calls or []] == [PARIS, ROME]


def test_one_call_at_a_time_if_the_client_requests_it(v3: ServerProcess) -> None:
    choice = both_ways(v3, "calls", tools=[WEATHER], parallel_tool_calls=False).choices[0]
    assert [call.function.arguments for call in choice.message.tool_calls or []] == [PARIS]
    assert choice.finish_reason == "tool_calls"


def test_reasoning_comes_before_a_call(r1: ServerProcess) -> None:
    choice = both_ways(r1, "thoughtful", tools=[WEATHER]).choices[0]
    assert choice.message.model_extra == {"reasoning_content": "Where?"}
    assert [call.function.name for call in choice.message.tool_calls or []] == ["weather"]


def test_a_call_that_is_cut_short_ends_by_length(v3: ServerProcess) -> None:
    choice = both_ways(v3, "call", tools=[WEATHER], max_tokens=40).choices[0]
    assert choice.finish_reason == "length"
    assert PARIS.startswith((choice.message.tool_calls or [])[0].function.arguments)


@pytest.mark.parametrize("script", ["scribble", "undeclared", "broken"])
def test_an_opened_call_is_of_a_declared_tool_with_valid_arguments(v3: ServerProcess, script: str) -> None:
    """The model tries to write invalid JSON, to call an undeclared tool, and to call nothing."""
    (choice,) = both_ways(v3, script, tools=[SHORT], max_tokens=400).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    for call in choice.message.tool_calls or []:
        assert call.function.name == "short"
        assert json.loads(call.function.arguments).keys() == {"sure"}


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("strict", [True, False])
def test_an_unenforceable_strict_schema_is_rejected(v3: ServerProcess, strict: bool, choice: Any) -> None:
    odd = {"type": "object", "properties": {"city": {"type": "string", "pattern": "(?=P)Paris"}}}
    fields = {"tools": [SHORT, tool(name="weather", parameters=odd, strict=strict)], "tool_choice": choice}
    if strict:
        with pytest.raises(openai.BadRequestError, match="look-around") as refused:
            both_ways(v3, "call", **fields)
        assert refused.value.param == "tools.1.function.parameters"
    else:
        (call,) = both_ways(v3, "call", **fields).choices[0].message.tool_calls or []
        assert call.function.arguments == PARIS


def test_an_unenforceable_response_format_with_tools_is_rejected_by_its_field(v3: ServerProcess) -> None:
    odd = {"type": "object", "properties": {"city": {"type": "string", "pattern": "(?=P)Paris"}}}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": odd, "strict": True}}
    with pytest.raises(openai.BadRequestError, match="look-around") as refused:
        both_ways(v3, "call", tools=[WEATHER], response_format=shape)
    assert refused.value.param == "response_format.json_schema.schema"


def test_call_marks_are_never_content(v3: ServerProcess) -> None:
    assert both_ways(v3, "ends", tools=[WEATHER]).choices[0].message.content == "I looked."
    for max_tokens in (1, 2, 5, 12):
        (cut,) = both_ways(v3, "call", tools=[WEATHER], max_tokens=max_tokens).choices
        assert not cut.message.content
        assert (cut.message.tool_calls, cut.finish_reason) == (None, "length")


def test_nothing_follows_the_calls(v3: ServerProcess) -> None:
    (choice,) = both_ways(v3, "twice", tools=[WEATHER]).choices
    assert [call.function.arguments for call in choice.message.tool_calls or []] == [PARIS]
    assert choice.message.content is None
    assert choice.finish_reason == "tool_calls"


def allowed(*names: str, mode: str = "auto") -> Any:
    chosen = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": chosen}}


def test_only_some_of_the_tools_may_be_called(v3: ServerProcess) -> None:
    (called,) = both_ways(v3, "call", tools=[WEATHER, SHORT], tool_choice=allowed("weather")).choices
    assert [call.function.name for call in called.message.tool_calls or []] == ["weather"]
    others = {"tools": [WEATHER, SHORT], "tool_choice": allowed("short"), "max_tokens": 400}
    (swayed,) = both_ways(v3, "call", **others).choices
    assert {call.function.name for call in swayed.message.tool_calls or []} == {"short"}
    (silent,) = both_ways(v3, "hello", **others).choices
    assert (silent.message.content, silent.finish_reason) == ("hello", "stop")
    must = {**others, "tool_choice": allowed("short", mode="required")}
    (required,) = both_ways(v3, "hello", **must).choices
    assert {call.function.name for call in required.message.tool_calls or []} == {"short"}


@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}])
def test_without_tools_nothing_is_a_call(v3: ServerProcess, fields: dict[str, Any]) -> None:
    choice = both_ways(v3, "call", **fields).choices[0]
    assert choice.message.tool_calls is None
    assert PARIS in (choice.message.content or "")
    assert choice.finish_reason == "stop"


def test_a_conversation_with_tools_continues(r1: ServerProcess) -> None:
    messages: list[Any] = [{"role": "user", "content": "say thoughtful"}]
    with openai_client(r1) as client:
        first = client.chat.completions.create(model="m", messages=messages, tools=[WEATHER]).choices[0].message
        messages += [first.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": c.id, "content": "12 °C"} for c in first.tool_calls or []]
        messages += [{"role": "user", "content": "say thought"}]
        second = client.chat.completions.create(model="m", messages=messages, tools=[WEATHER]).choices[0].message
    assert second.content == "It is 4."


def forced(server: ServerProcess, choice: Any, **fields: Any) -> ChatCompletion:
    """The model tries to say hello, but must call a tool."""
    with openai_client(server) as client:
        return client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "say hello"}],
            tools=[WEATHER, tool(name="other", parameters={"type": "object", "maxProperties": 0})],
            tool_choice=choice,
            max_tokens=300,
            temperature=0,
            **fields,
        )


def test_a_call_can_be_required(r1: ServerProcess) -> None:
    (choice,) = forced(r1, "required", extra_body=NO_THOUGHT).choices
    assert choice.message.tool_calls
    assert {call.function.name for call in choice.message.tool_calls} <= {"weather", "other"}
    assert choice.finish_reason in ("tool_calls", "length")


def test_a_structured_reply_may_still_call_tools(r1: ServerProcess) -> None:
    shape = {"response_format": {"type": "json_object"}, "extra_body": NO_THOUGHT}
    (called,) = both_ways(r1, "call", tools=[WEATHER], **shape).choices
    assert [call.function.arguments for call in called.message.tool_calls or []] == [PARIS]
    (output,) = both_ways(r1, "object", tools=[WEATHER], **shape).choices
    assert (output.message.content, output.finish_reason) == ('{"a": 1}', "stop")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_in_the_models_own_form_satisfies_required(r1: ServerProcess, choice: Any) -> None:
    (reply,) = both_ways(r1, "thoughtful", tools=[WEATHER], tool_choice=choice).choices
    assert [call.function.arguments for call in reply.message.tool_calls or []] == [PARIS]
    assert reply.message.model_extra == {"reasoning_content": "Where?"}


def test_a_forced_named_call_has_finish_reason_stop(r1: ServerProcess) -> None:
    (choice,) = forced(r1, {"type": "function", "function": {"name": "other"}}, extra_body=NO_THOUGHT).choices
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("other", {})
    assert choice.finish_reason == "stop"


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": 5}]}, "tools.0.type"),
        ({"tools": [tool()]}, "tools.0.function.name"),
        ({"tools": [tool(name="a b")]}, "tools.0.function.name"),
        ({"tools": [tool(name="a", parameters="x")]}, "tools.0.function.parameters"),
        ({"tools": [tool(name="a", parameters={"type": "string"})]}, "tools.0.function.parameters.type"),
        ({"tools": [tool(name="a", description=1)]}, "tools.0.function.description"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1.function.name"),
        (
            {"tools": [WEATHER, tool(name="a", parameters={"not": {}}, strict=True)], "tool_choice": "required"},
            "tools.1.function.parameters",
        ),
        ({"tools": {}}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": allowed("x")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [WEATHER], "tool_choice": allowed(mode="auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [WEATHER], "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_invalid_tools_are_rejected_by_name(v3: ServerProcess, fields: dict[str, Any], param: str) -> None:
    with openai_client(v3) as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], extra_body=fields)
    assert (refused.value.param or "").startswith(param)
    assert "Named" not in refused.value.message


def test_every_delta_names_a_call_once(v3: ServerProcess) -> None:
    with openai_client(v3) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "say calls"}], tools=[WEATHER], stream=True
        )
        deltas = [call for chunk in stream for c in chunk.choices for call in c.delta.tool_calls or []]
    begun = [delta for delta in deltas if delta.id]
    assert [(d.index, d.type, d.function.name, d.function.arguments) for d in begun if d.function] == [
        (0, "function", "weather", ""),
        (1, "function", "weather", ""),
    ]
    rest = [delta for delta in deltas if not delta.id]
    assert all(d.type is None and d.function and d.function.name is None for d in rest)
    assert len(rest) > 20, "arguments are streamed while they are generated"
    assert json.loads("".join(d.function.arguments or "" for d in rest if d.index == 0 and d.function))
