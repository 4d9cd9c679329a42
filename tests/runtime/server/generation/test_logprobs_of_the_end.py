"""Every generated token that `usage` counts has a log probability, including the end token and stop string tokens."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from devkit.models.vocabulary import EOS, byte_tokenizer
from devkit.servers.process import ServerProcess

SCRIPT = ("devkit.servers.script_server",)
TOKENIZER = byte_tokenizer()
END = 1
NO_THOUGHT = {"thinking": {"type": "disabled"}}
INCLUDE = ["message.output_text.logprobs"]
TEXT_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--chat_template", "deepseek-r1", module=SCRIPT) as process:
        yield process


def ask(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    reply = httpx.post(server.url + path, json={"model": "m", "temperature": 0, **body}, timeout=60)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def frames(server: ServerProcess, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = httpx.post(server.url + path, json={"model": "m", "temperature": 0, "stream": True, **body}, timeout=60)
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


@pytest.mark.parametrize("prompt", ["say hello, hello", ids("say hello, hello"), [0, *ids("hello")]])
@pytest.mark.parametrize("top", [0, 1, 5])
def test_an_end_token_right_after_an_echoed_prompt_has_its_score(server: ServerProcess, prompt: Any, top: int) -> None:
    reply = ask(server, "/v1/completions", prompt=prompt, echo=True, logprobs=top, max_tokens=1)
    [choice] = reply["choices"]
    scores = choice["logprobs"]
    num_bos = 1 if isinstance(prompt, str) else 0
    assert reply["usage"]["completion_tokens"] == 1
    assert {len(scores[name]) for name in TEXT_LISTS} == {reply["usage"]["total_tokens"] - num_bos}
    assert (scores["tokens"][-1], scores["text_offset"][-1]) == (EOS, len(choice["text"]))
    assert scores["token_logprobs"][-1] == pytest.approx(0, abs=1e-6)
    assert len(scores["top_logprobs"][-1]) == max(1, top)
    assert choice["finish_reason"] == "stop"


def test_each_choice_of_several_prompts_has_as_many_scores_as_tokens(server: ServerProcess) -> None:
    prompts = [ids("hello"), ids("say hello, hel"), ids("say painted,")]
    body: dict[str, Any] = {"prompt": prompts, "n": 2, "echo": True, "logprobs": 1, "max_tokens": 4}
    reply = ask(server, "/v1/completions", **body)
    generated = [1, 1, 3, 3, 4, 4]
    assert reply["usage"]["completion_tokens"] == sum(generated)
    for choice, prompt, num in zip(reply["choices"], [p for p in prompts for _ in range(2)], generated, strict=True):
        assert len(choice["logprobs"]["tokens"]) == len(prompt) + num
    streamed: list[dict[str, list[Any]]] = [{name: [] for name in TEXT_LISTS} for _ in generated]
    for frame in frames(server, "/v1/completions", **body):
        for choice in frame["choices"]:
            for name in TEXT_LISTS if choice["logprobs"] else ():
                streamed[choice["index"]][name] += choice["logprobs"][name]
    assert streamed == [choice["logprobs"] for choice in reply["choices"]]


@pytest.mark.parametrize("keep", [False, True])
def test_the_tokens_of_a_stop_string_have_scores_and_begin_at_the_end_of_the_text(
    server: ServerProcess, keep: bool
) -> None:
    body = {"prompt": "say hello,", "stop": "ll", "echo": True, "logprobs": 1, "include_stop_str_in_output": keep}
    reply = ask(server, "/v1/completions", **body)
    [choice] = reply["choices"]
    assert choice["text"] == "say hello,he" + ("ll" if keep else "")
    assert reply["usage"]["completion_tokens"] == len("hell")
    assert choice["logprobs"]["tokens"][-4:] == ["h", "e", "l", "l"]
    assert choice["logprobs"]["text_offset"][-4:] == ([10, 11, 12, 13] if keep else [10, 11, 12, 12])


def test_a_stop_token_of_the_clients_has_its_score_and_its_id(server: ServerProcess) -> None:
    body: dict[str, Any] = {"prompt": "say hello,", "stop_token_ids": ids("o"), "logprobs": 1, "return_token_ids": True}
    [choice] = ask(server, "/v1/completions", **body)["choices"]
    assert (choice["text"], choice["token_ids"]) == ("hell", ids("hello"))
    assert choice["logprobs"]["tokens"] == list("hello")
    streamed = frames(server, "/v1/completions", **body)
    assert [token for frame in streamed for token in frame["choices"][0].get("token_ids") or ()] == ids("hello")


def test_the_ids_of_a_reply_include_its_end_token(server: ServerProcess) -> None:
    reply = ask(server, "/v1/completions", prompt="say hello,", return_token_ids=True)
    assert reply["choices"][0]["token_ids"] == [*ids("hello"), END]
    assert reply["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize(("script", "text"), [("hello", "hello"), ("thought", "It is 4.")])
def test_a_chats_scores_include_the_end_token(server: ServerProcess, script: str, text: str, top: int) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"say {script}"}],
        "logprobs": True,
        "top_logprobs": top,
        **({} if script == "thought" else NO_THOUGHT),
    }
    reply = ask(server, "/v1/chat/completions", **body)
    scores = reply["choices"][0]["logprobs"]
    assert "".join(entry["token"] for entry in scores["content"]) == text + EOS
    assert {len(entry["top_logprobs"]) for entry in scores["content"]} == {top}
    num_scores = len(scores["content"]) + len(scores["reasoning_content"] or ())
    assert num_scores == reply["usage"]["completion_tokens"]
    streamed = [
        entry
        for frame in frames(server, "/v1/chat/completions", **body)
        for choice in frame["choices"]
        for entry in (choice["logprobs"] or {}).get("content") or ()
    ]
    assert streamed == scores["content"]


def test_a_responses_scores_include_the_end_token(server: ServerProcess) -> None:
    body: dict[str, Any] = {
        "input": "say hello",
        "include": INCLUDE,
        "top_logprobs": 1,
        "reasoning": {"effort": "none"},
    }
    reply = ask(server, "/v1/responses", **body)
    [part] = reply["output"][0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == "hello" + EOS
    assert len(part["logprobs"]) == reply["usage"]["output_tokens"]
    events = frames(server, "/v1/responses", **body)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]
    assert "".join(event["delta"] for event in deltas) == "hello"


@pytest.mark.parametrize("stream", [False, True])
def test_llama_cpps_completion_has_a_probability_for_each_predicted_token(server: ServerProcess, stream: bool) -> None:
    body = {"prompt": "say hello,", "n_probs": 1, "return_tokens": True, "n_predict": 20}
    found = frames(server, "/completion", **body) if stream else [ask(server, "/completion", **body)]
    probabilities = [entry for each in found for entry in each.get("completion_probabilities") or ()]
    assert [entry["id"] for entry in probabilities] == [*ids("hello"), END]
    assert [token for each in found for token in each["tokens"]] == [*ids("hello"), END]
    assert found[-1]["tokens_predicted"] == 6
