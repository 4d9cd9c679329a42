"""An empty input gets a 400 that names the field, in every API; an empty text is valid text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from devkit.servers.process import ServerProcess

SCRIPT = ("devkit.servers.script_server",)
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--chat_template", "deepseek-v3.1", module=SCRIPT) as process:
        yield process


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> httpx.Response:
    limit = {RESPONSES: {"max_output_tokens": 2}, ANTHROPIC[1]: {}}.get(path, {"max_tokens": 2})
    return httpx.post(server.url + path, json={"model": "m", **limit, **body}, timeout=60)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


MESSAGE = [user("a"), {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [[]]}, "prompt"),
        (TEXT, {"prompt": ["a", []]}, "prompt"),
        (TEXT, {"prompt": [[5], []]}, "prompt"),
        (TEXT, {"prompt": [[], [5]]}, "prompt"),
        ("/completion", {"prompt": []}, "prompt"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [user([])]}, "messages.0.content"),
        (CHAT, {"messages": [*MESSAGE, user([])]}, "messages.2.content"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [user([])]}, "messages.0.content"),
        ("/apply-template", {"messages": [user([])]}, "messages.0.content"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": [], "instructions": "Be brief."}, "input"),
        (RESPONSES, {"input": [user([])]}, "input.0.content"),
        (RESPONSES, {"input": [*MESSAGE, user([])]}, "input.2.content"),
        *((path, {"messages": []}, "messages") for path in ANTHROPIC),
        *((path, {"messages": [user([])]}, "messages.0.content") for path in ANTHROPIC),
        *((path, {"messages": [user([])], "system": "Be brief."}, "messages.0.content") for path in ANTHROPIC),
        *((path, {"messages": [*MESSAGE, user([])]}, "messages.2.content") for path in ANTHROPIC),
    ],
    ids=json.dumps,
)
def test_an_empty_list_is_refused_by_its_name(
    server: ServerProcess, path: str, body: dict[str, Any], field: str
) -> None:
    reply = post(server, path, body)
    assert reply.status_code == 400, reply.text
    message = reply.json()["error"]["message"]
    assert message.startswith(f"{field}: ")
    assert "empty" in message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": ""}),
        (CHAT, {"messages": [user("")]}),
        (CHAT, {"messages": [user("a"), {"role": "assistant", "content": []}, user("b")]}),
        (CHAT, {"messages": [{"role": "system", "content": []}, user("b")]}),
        (RESPONSES, {"input": ""}),
        (RESPONSES, {"input": [user("")]}),
        *((path, {"messages": [user("")]}) for path in ANTHROPIC),
        *((path, {"messages": [user("a")], "system": []}) for path in ANTHROPIC),
        *(
            (path, {"messages": [user([{"type": "tool_result", "tool_use_id": "x", "content": []}])]})
            for path in ANTHROPIC
        ),
    ],
    ids=json.dumps,
)
def test_an_empty_text_and_an_empty_result_are_read(server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    assert post(server, path, body).status_code == 200


@pytest.mark.parametrize("value", [None, 5, {}])
def test_an_input_that_is_not_a_text_or_list_is_rejected_with_both_types(server: ServerProcess, value: Any) -> None:
    message = post(server, RESPONSES, {"input": value}).json()["error"]["message"]
    assert message == "input: must be a string or a list of items"
