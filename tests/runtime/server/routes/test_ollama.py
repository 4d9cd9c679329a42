"""Ollama's API over plain HTTP, against the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast.model.facts import ModelFacts
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.ollama.models import API_VERSION
from ballast.wire.ollama.request import OllamaChatRequest, chat_of, parse_ollama
from ballast.wire.openai.request import to_sampling
from devkit.servers.process import FAKE, ServerProcess
from devkit.servers.script_server import PARIS, ROME

SCRIPT = ("devkit.servers.script_server",)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--chat_template", "deepseek-r1", module=SCRIPT) as process:
        yield process


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={"model": "script"} | body, timeout=60)


def lines(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.text.endswith("\n")
    return [json.loads(line) for line in reply.text.removesuffix("\n").split("\n")]


def both_ways(server: ServerProcess, script: str, **fields: Any) -> dict[str, Any]:
    """The whole chat reply; checks that the stream produces the same."""
    requested = {"messages": [{"role": "user", "content": f"say {script}"}], "options": {"num_predict": 300}} | fields
    whole = post(server, "/api/chat", **requested, stream=False).json()
    parts = lines(post(server, "/api/chat", **requested))
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    for name in ("content", "thinking"):
        assert "".join(part["message"].get(name, "") for part in parts) == whole["message"].get(name, "")
    calls = [call["function"] for part in parts for call in part["message"].get("tool_calls", ())]
    assert calls == [call["function"] for call in whole["message"].get("tool_calls", ())]
    assert parts[-1]["done_reason"] == whole["done_reason"]
    assert parts[-1]["eval_count"] == whole["eval_count"]
    return whole


def test_a_chat_has_thinking_content_and_costs(server: ServerProcess) -> None:
    whole = both_ways(server, "thought")
    assert whole["message"] == {"role": "assistant", "content": "It is 4.", "thinking": "Let me see."}
    assert (whole["model"], whole["done"], whole["done_reason"]) == ("script", True, "stop")
    assert datetime.fromisoformat(whole["created_at"]).tzinfo is not None
    assert all(type(whole[name]) is int and whole[name] > 0 for name in DURATIONS)
    assert sum(whole[name] for name in DURATIONS[1:]) <= whole["total_duration"] + 10
    assert whole["prompt_eval_count"] > 10
    assert whole["eval_count"] == len("Let me see.\n") + 1 + len("\n\nIt is 4.") + 1


def test_a_reply_limited_by_num_predict_has_the_reason_length(server: ServerProcess) -> None:
    whole = both_ways(server, "endless", think=False, options={"num_predict": 5})
    assert (whole["message"]["content"], whole["done_reason"], whole["eval_count"]) == ("Let m", "length", 5)


def test_a_stop_string_ends_the_reply(server: ServerProcess) -> None:
    for stop in ("me", ["x", "me"]):
        whole = both_ways(server, "endless", think=False, options={"stop": stop})
        assert (whole["message"]["content"], whole["done_reason"]) == ("Let ", "stop")


def test_tool_calls_are_whole_and_have_objects_as_arguments(server: ServerProcess) -> None:
    whole = both_ways(server, "calls", tools=[WEATHER], think=False)
    assert whole["message"]["content"].strip() == "I look it up."
    assert [call["function"] for call in whole["message"]["tool_calls"]] == [
        {"index": 0, "name": "weather", "arguments": json.loads(PARIS)},
        {"index": 1, "name": "weather", "arguments": json.loads(ROME)},
    ]
    assert whole["done_reason"] == "stop"


def test_a_conversation_with_tools_continues(server: ServerProcess) -> None:
    called = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    messages = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "thinking": "Where?", "tool_calls": [called]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
        {"role": "user", "content": "say painted"},
    ]
    assert both_ways(server, "", messages=messages, think=False)["message"]["content"] == "The wall is red."


def test_results_get_the_ids_of_their_calls() -> None:
    called = [{"function": {"name": name, "arguments": {"n": n}}} for n, name in enumerate(("a", "b", "a"))]
    results = [{"role": "tool", "tool_name": name, "content": name} for name in ("b", "a", "a")]
    results[0]["tool_call_id"] = "call_0_1"
    body = {"model": "m", "messages": [{"role": "assistant", "content": None, "tool_calls": called}, *results]}
    read = parse_ollama(OllamaChatRequest, json.dumps(body).encode(), 100, IgnoredFields())
    chat = chat_of(read, IgnoredFields())
    assert [call["id"] for call in chat.messages[0]["tool_calls"]] == ["call_0_0", "call_0_1", "call_0_2"]
    assert [message["tool_call_id"] for message in chat.messages[1:]] == ["call_0_1", "call_0_0", "call_0_2"]


def test_formats_hold_the_reply() -> None:
    with ServerProcess("--max_batch_size", "4") as process:  # the built-in model, which follows grammars
        schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        schema["additionalProperties"] = False
        requested = {"messages": [{"role": "user", "content": "hello"}], "stream": False, "options": {"temperature": 0}}
        whole = post(process, "/api/chat", **requested, format=schema).json()
        assert json.loads(whole["message"]["content"])["a"] in (1, 2)
        prompt = {"prompt": "hello", "stream": False, "options": {"temperature": 0}}
        prompted = post(process, "/api/generate", **prompt, format=schema).json()
        assert json.loads(prompted["response"])["a"] in (1, 2)


def test_a_prompt_is_a_chat_of_one_turn(server: ServerProcess) -> None:
    requested = {"prompt": "say thought", "system": "You help.", "options": {"num_predict": 300}}
    whole = post(server, "/api/generate", **requested, stream=False).json()
    assert (whole["response"], whole["thinking"], whole["done_reason"]) == ("It is 4.", "Let me see.", "stop")
    parts = lines(post(server, "/api/generate", **requested))
    assert "".join(part["response"] for part in parts) == "It is 4."
    assert "".join(part.get("thinking", "") for part in parts) == "Let me see."
    assert all("message" not in part for part in (whole, *parts))
    assert parts[-1]["eval_count"] == whole["eval_count"]


def test_a_raw_prompt_is_continued_as_it_is() -> None:
    with ServerProcess("--max_new_tokens", "8", module=FAKE) as process:
        reply = post(process, "/api/generate", prompt="abcd", raw=True, stream=False, options={"num_predict": 3}).json()
        assert (reply["response"], reply["done_reason"], reply["prompt_eval_count"]) == ("efg", "length", 5)


def test_log_probabilities_come_on_demand() -> None:
    with ServerProcess("--max_new_tokens", "8", module=FAKE) as process:
        requested = {"prompt": "abcd", "raw": True, "options": {"num_predict": 3}, "logprobs": True, "top_logprobs": 1}
        whole = post(process, "/api/generate", **requested, stream=False).json()
        assert [each["token"] for each in whole["logprobs"]] == ["e", "f", "g"]
        first = whole["logprobs"][0]
        assert (first["bytes"], [top["token"] for top in first["top_logprobs"]]) == ([ord("e")], ["e"])
        parts = lines(post(process, "/api/generate", **requested))
        assert [each for part in parts for each in part.get("logprobs", ())] == whole["logprobs"]
        chat = post(process, "/api/chat", messages=[{"role": "user", "content": "abcd"}], stream=False, logprobs=True)
        assert len(chat.json()["logprobs"]) == chat.json()["eval_count"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [("/api/chat", {}, "message"), ("/api/chat", {"messages": []}, "message"), ("/api/generate", {}, "response")],
)
def test_no_prompt_asks_whether_the_model_is_loaded(
    server: ServerProcess, path: str, body: dict[str, Any], field: str
) -> None:
    (streamed,) = lines(post(server, path, **body, keep_alive="5m"))
    whole = post(server, path, **body, keep_alive=0, stream=False).json()
    for reply in (streamed, whole):
        assert (reply["done"], reply["done_reason"]) == (True, "load")
        assert field in reply


def sampling(**options: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "options": options}
    ignored = IgnoredFields()
    chat = chat_of(parse_ollama(OllamaChatRequest, json.dumps(body).encode(), 100, ignored), ignored)
    return chat, to_sampling(chat, max_tokens=9, eos_ids=frozenset()), ignored


def test_options_and_defaults_are_ollamas() -> None:
    chat, params, _ = sampling()
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.8, 40, 0.9, None)
    assert (params.repetition_penalty, chat.max_tokens) == (1.0, None)
    chat, params, ignored = sampling(
        num_predict=7, temperature=0, top_k=5, top_p=0.5, min_p=0.1, seed=3, repeat_penalty=1.2, presence_penalty=1
    )
    assert (chat.max_tokens, params.temperature, params.top_k, params.top_p) == (7, 0, 5, 0.5)
    assert (params.min_p, params.seed, params.repetition_penalty, params.presence_penalty) == (0.1, 3, 1.2, 1)
    assert not ignored
    for unlimited in (-1, -2, 0):
        assert sampling(num_predict=unlimited)[0].max_tokens is None
    assert sampling(seed=-1)[1].seed is None
    assert sampling(repeat_penalty=1.2, repeat_last_n=0)[1].repetition_penalty == 1.0
    _, params, ignored = sampling(repeat_penalty=1.2, repeat_last_n=64)
    assert (params.repetition_penalty, ignored.names) == (1.2, ["options.repeat_last_n"])


def test_options_of_loading_have_no_effect(server: ServerProcess) -> None:
    options = {"num_ctx": 4096, "num_gpu": 99, "num_thread": 2, "use_mmap": True, "num_keep": 4, "mirostat": 0}
    reply = post(server, "/api/chat", messages=[{"role": "user", "content": "a"}], options=options, stream=False)
    assert (reply.status_code, reply.headers.get("x-ballast-ignored")) == (200, None)


HELLO = [{"role": "user", "content": "hello"}]


def test_an_unenforceable_schema_is_ignored_and_reported(server: ServerProcess) -> None:
    reply = post(server, "/api/chat", messages=HELLO, stream=False, format={"type": "no type"})
    assert reply.status_code == 200
    assert "format" in reply.headers["X-Ballast-Ignored"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, "messages.0.images: this"),
        ("/api/generate", {"prompt": "a", "images": ["aGk="]}, "images: this model reads only text"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template: the model's chat template is used"),
        ("/api/generate", {"prompt": "a", "context": [1]}, "context: replies do not contain a context"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix: this model's vocabulary has no tokens"),
        ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, "system: a prompt with raw"),
        ("/api/chat", {"messages": HELLO, "options": {"temperature": -1}}, "options.temperature: "),
        (
            "/api/chat",
            {"messages": HELLO, "options": {"mirostat": 1}},
            "options.mirostat: this sampling method is not implemented",
        ),
        ("/api/chat", {"messages": HELLO, "options": {"stop": [""]}}, "options.stop.0: "),
        ("/api/chat", {"messages": HELLO, "options": {"stop": ["a"] * 99}}, "options.stop: "),
        ("/api/chat", {"messages": HELLO, "format": "yaml"}, "format: "),
        ("/api/chat", {"messages": HELLO, "think": "somewhat"}, "think: "),
        ("/api/chat", {"messages": HELLO, "top_logprobs": 2}, "top_logprobs: is only allowed"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        ("/api/chat", {"messages": [{"role": "user", "content": []}]}, "messages.0.content: must be a string"),
        ("/api/chat", {"messages": [{"role": "user", "content": 0}]}, "messages.0.content: must be a string"),
        ("/api/chat", {"messages": "hello"}, "messages: "),
        (
            "/api/chat",
            {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]},
            "tools.0.function.parameters.type is 5; arguments are an object",
        ),
        ("/api/chat", {"messages": HELLO, "model": ""}, "model: "),
        ("/api/chat", {"messages": HELLO, "model": None}, "model: "),
        ("/api/chat", {"messages": HELLO, "stream": "yes"}, "stream: "),
    ],
)
def test_refusals_name_the_field_in_ollamas_envelope(
    server: ServerProcess, path: str, body: dict[str, Any], message: str
) -> None:
    reply = post(server, path, **body)
    assert reply.status_code == 400
    assert list(reply.json()) == ["error"]
    assert reply.json()["error"].startswith(message)


def test_a_prompt_that_is_too_long_is_refused(server: ServerProcess) -> None:
    reply = post(server, "/api/generate", prompt="a" * 70_000)
    assert reply.status_code == 400
    assert "maximum context length" in reply.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "output"),
    [
        ("POST", "/api/embed", "provides no embeddings"),
        ("POST", "/api/embeddings", "provides no embeddings"),
        ("POST", "/api/create", "ballast pull"),
        ("POST", "/api/copy", "ballast pull"),
        ("POST", "/api/push", "ballast pull"),
        ("DELETE", "/api/delete", "ballast pull"),
        ("POST", "/api/blobs/sha256:00", "ballast pull"),
        ("HEAD", "/api/blobs/sha256:00", ""),
        ("GET", "/api/nothing", "/api/nothing"),
    ],
)
def test_fields_that_do_not_apply_are_rejected_with_a_fix(
    server: ServerProcess, method: str, path: str, output: str
) -> None:
    reply = httpx.request(method, server.url + path, timeout=60)
    assert reply.status_code == 404
    assert method == "HEAD" or output in reply.json()["error"]


def test_pull_succeeds_for_the_model_that_is_served(server: ServerProcess) -> None:
    assert lines(post(server, "/api/pull", model="script:latest")) == [{"status": "success"}]
    assert post(server, "/api/pull", model="script", stream=False).json() == {"status": "success"}
    refused = post(server, "/api/pull", model="other")
    assert refused.status_code == 404
    assert "ballast pull" in refused.json()["error"]


def test_lists_name_the_model(server: ServerProcess) -> None:
    assert httpx.get(server.url + "/api/version").json() == {"version": API_VERSION}
    (listed,) = httpx.get(server.url + "/api/tags").json()["models"]
    assert (listed["name"], listed["model"]) == ("script:latest", "script:latest")
    assert listed["details"]["format"] == "gguf"
    assert len(listed["digest"]) == 64
    datetime.fromisoformat(listed["modified_at"])
    (running,) = httpx.get(server.url + "/api/ps").json()["models"]
    assert (running["name"], running["digest"], running["context_length"]) == ("script:latest", listed["digest"], 32768)
    assert httpx.head(server.url + "/").status_code == 200
    assert httpx.head(server.url + "/api/tags").status_code == 200


def test_show_describes_the_model(server: ServerProcess) -> None:
    for name in ({"model": "script"}, {"model": "script:latest"}, {"name": "script", "model": None}):
        shown = post(server, "/api/show", **name)
        assert shown.status_code == 200
        body = shown.json()
        assert set(body["capabilities"]) == {"completion", "thinking", "tools"}
        architecture = body["model_info"]["general.architecture"]
        assert body["model_info"][f"{architecture}.context_length"] == 32768
        assert "messages" in body["template"]
    missing = post(server, "/api/show", model="other")
    assert missing.status_code == 404
    assert "other" in missing.json()["error"]


def test_the_built_in_model_has_a_size_and_keys() -> None:
    with ServerProcess("--max_batch_size", "2") as process:
        (listed,) = httpx.get(process.url + "/api/tags").json()["models"]
        assert listed["size"] > 1_000_000
        assert listed["details"]["family"] in ("deepseek2", "qwen3moe", "glm4moe")
        assert listed["details"]["parameter_size"][-1] in "KMB"
        shown = post(process, "/api/show", model=listed["name"]).json()
        assert shown["model_info"]["general.parameter_count"] > 1_000_000
        assert not any(name.startswith("tokenizer.") for name in shown["model_info"])


def test_sizes_are_written_for_people() -> None:
    sizes = [ModelFacts(num_parameters=number).parameter_size for number in (0, 999, 1_500, 2_400_000, 15_700_000_000)]
    assert sizes == ["0", "999", "1.5K", "2.4M", "15.7B"]


def test_keys_and_names_are_checked_in_ollamas_envelope(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret")
    options = ("--api_key_file", str(keys), "--served_model_name", "one", "--strict_model_name")
    with ServerProcess(*options, "--admin_port", "0", module=FAKE) as process:
        body = {"model": "one:latest", "messages": HELLO, "stream": False}
        refused = httpx.post(process.url + "/api/chat", json=body)
        assert (refused.status_code, list(refused.json())) == (401, ["error"])
        keyed = {"Authorization": "Bearer secret"}
        assert httpx.post(process.url + "/api/chat", json=body, headers=keyed).status_code == 200
        other = httpx.post(process.url + "/api/chat", json=body | {"model": "two"}, headers=keyed)
        assert other.status_code == 404
        assert "'two' does not exist" in other.json()["error"]


def test_an_error_within_a_stream_is_its_last_line() -> None:
    with ServerProcess("--max_new_tokens", "50", "--fail_at", "5", module=FAKE) as process:
        parts = lines(post(process, "/api/generate", prompt="abcd", raw=True))
        assert parts[0]["response"] == "e"
        assert list(parts[-1]) == ["error"]


def test_a_silent_stream_sends_lines_with_empty_text() -> None:
    options = ("--step_s", "0.7", "--keep_alive_s", "0.1", "--max_new_tokens", "2")
    with ServerProcess(*options, module=FAKE) as process:
        parts = lines(post(process, "/api/generate", prompt="abcd", raw=True))
        assert "".join(part["response"] for part in parts) == "ef"
        assert len([part for part in parts if not part["done"] and part["response"] == ""]) >= 2


def test_a_body_without_the_json_content_type_is_rejected_with_a_fix(server: ServerProcess) -> None:
    reply = httpx.post(server.url + "/api/chat", content=b"{}")
    assert reply.status_code == 415
    assert "Content-Type: application/json" in reply.json()["error"]
