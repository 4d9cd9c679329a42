"""For any valid request, the stream equals the whole reply, both match the published schema, and calls are of declared
tools with valid arguments."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devkit.long import times
from devkit.oracles.published_schemas import follows, stream_events
from devkit.servers.process import ServerProcess
from devkit.servers.script_server import SCRIPTS

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": PARAMETERS, "strict": True}}
CHOSEN = {"type": "function", "function": {"name": "weather"}}
HISTORY = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": None, "tool_calls": [CHOSEN | {"id": "c"}]},
    {"role": "tool", "tool_call_id": "c", "content": "12"},
]
SHAPES = (
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS, "strict": True}},
)
CHOICES = (
    *("auto", "none", "required", CHOSEN),
    *({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [CHOSEN]}} for mode in ("auto", "required")),
)

messages = st.builds(
    lambda earlier, script: [*earlier, {"role": "user", "content": f"say {script}"}],
    st.sampled_from(([], HISTORY)),
    st.sampled_from(sorted(SCRIPTS)),
)
options = st.fixed_dictionaries(
    {"messages": messages, "max_tokens": st.sampled_from((3, 40, 200)), "seed": st.integers(0, 9)},
    optional={
        "response_format": st.sampled_from(SHAPES),
        "n": st.integers(1, 3),
        "stop": st.sampled_from(("l", ["e", "city"], "</think>", "}")),
        "temperature": st.sampled_from((0, 1, 2)),
        "top_p": st.sampled_from((0, 0.5)),
        "top_k": st.sampled_from((-1, 3)),
        "min_tokens": st.integers(0, 3),
        "logit_bias": st.sampled_from(({"5": -100}, {"5": 100})),
        "presence_penalty": st.just(1.5),
        "include_stop_str_in_output": st.booleans(),
        "return_token_ids": st.booleans(),
        "timings_per_token": st.booleans(),
    },
)
scores = st.sampled_from(({}, {}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 20}))
tools = st.just({}) | st.fixed_dictionaries(
    {"tools": st.sampled_from(([WEATHER], [WEATHER, OTHER]))},
    optional={"tool_choice": st.sampled_from(CHOICES), "parallel_tool_calls": st.booleans()},
)
bodies = st.builds(lambda *parts: {key: value for part in parts for key, value in part.items()}, options, scores, tools)


@pytest.fixture(scope="module", params=["deepseek-r1", "deepseek-v3.1"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    options = ("--chat_template", request.param, "--max_batch_size", "8")
    with ServerProcess(*options, module=("devkit.servers.script_server",)) as process:
        yield process
        process.wait_until_empty()


def joined(events: list[Any]) -> dict[int, Any]:
    """Choice → its joined deltas, in the form of a whole reply."""
    output: dict[int, Any] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        message = output.setdefault(
            choice["index"], {"content": "", "reasoning": "", "calls": {}, "scores": [], "why": []}
        )
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", ()):
            name, arguments = message["calls"].get(part["index"], ("", ""))
            function = part["function"]
            message["calls"][part["index"]] = (name + function.get("name", ""), arguments + function["arguments"])
        message["scores"] += (choice["logprobs"] or {"content": []})["content"]
        message["why"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return output


def fields_of(choice: Any) -> dict[str, Any]:
    """The same for a choice of a whole reply."""
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": dict(enumerate(calls)),
        "scores": (choice["logprobs"] or {"content": []})["content"],
        "why": [choice["finish_reason"]],
    }


def may_call(body: dict[str, Any]) -> set[str]:
    choice = body.get("tool_choice", "auto")
    if choice == "none":
        return set()
    return {"weather"} if isinstance(choice, dict) else {tool["function"]["name"] for tool in body.get("tools", ())}


@settings(
    max_examples=times(12, 40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(body=bodies)
def test_a_valid_request_gets_the_same_reply_streamed_and_whole(server: ServerProcess, body: dict[str, Any]) -> None:
    url = f"{server.url}/v1/chat/completions"
    reply = httpx.post(url, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    whole = reply.json()
    follows(whole, "CreateChatCompletionResponse")
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    events = stream_events(httpx.post(url, json=streaming, timeout=60))
    for event in events:
        follows(event, "CreateChatCompletionStreamResponse")
    assert joined(events) == {choice["index"]: fields_of(choice) for choice in whole["choices"]}
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        for name, arguments in fields_of(choice)["calls"].values():
            assert name in may_call(body)
            if choice["finish_reason"] == "tool_calls" and "stop" not in body:
                assert {"city"} <= json.loads(arguments).keys() <= {"city", "n"}
