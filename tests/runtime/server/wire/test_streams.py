"""The exact bytes of streams in the wire format, with a model whose text is known."""

import http.client
import json
import re

import openai
import pytest

from devkit.servers.process import FAKE, JSON, ServerProcess


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--max_new_tokens", "200", module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def thinker():
    with ServerProcess("--force_think", "--served_model_name", "a", "--served-model-name", "b", module=FAKE) as process:
        yield process


def post(server, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", path, json.dumps(body), JSON)
    response = connection.getresponse()
    data = response.read().decode()
    connection.close()
    assert response.status == 200, data
    return response.headers, data


def chunks(data):
    """The JSON of every frame except the last, which must be [DONE]."""
    assert data.endswith("data: [DONE]\n\n")
    frames = data.removesuffix("data: [DONE]\n\n").split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def chat(content, **fields):
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def test_a_chat_stream_is_role_text_reason_done(server):
    headers, data = post(server, "/v1/chat/completions", chat("abc", max_tokens=3, stream=True, model="m"))
    assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert headers["Cache-Control"] == "no-cache"
    stream = chunks(data)
    assert [chunk["choices"][0]["delta"] for chunk in stream] == [
        {"role": "assistant", "content": ""},
        {"content": "d"},
        {"content": "e"},
        {"content": "f"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in stream] == [None, None, None, None, "length"]
    for chunk in stream:
        last = {"timings"} if chunk is stream[-1] else set()
        assert set(chunk) == {"id", "object", "created", "model", "system_fingerprint", "choices"} | last
        assert (chunk["object"], chunk["model"]) == ("chat.completion.chunk", "m")
        assert (chunk["id"], chunk["created"]) == (stream[0]["id"], stream[0]["created"])
        assert [choice["index"] for choice in chunk["choices"]] == [0]
    assert re.fullmatch(r"chatcmpl-\w+", stream[0]["id"])


def test_usage_is_last_and_only_on_request(server):
    body = chat("abc", max_tokens=3, stream=True, stream_options={"include_usage": True})
    *stream, last = chunks(post(server, "/v1/chat/completions", body)[1])
    assert all(chunk["usage"] is None for chunk in stream)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "total_tokens": 7,
        "prompt_cache_hit_tokens": 0,
        "prompt_cache_miss_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_whole_chat_reply_equals_its_stream(server):
    headers, data = post(server, "/v1/chat/completions", chat("abc", max_tokens=40))
    assert headers["Content-Type"] == "application/json"
    whole = json.loads(data)
    assert whole["object"] == "chat.completion"
    (choice,) = whole["choices"]
    assert choice["message"] == {"role": "assistant", "content": choice["message"]["content"], "refusal": None}
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    stream = chunks(post(server, "/v1/chat/completions", chat("abc", max_tokens=40, stream=True))[1])
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in stream) == choice["message"]["content"]
    assert choice["message"]["content"] == "defghijklmnopqrstuvwxyzabcdefghijklmnopq"
    assert whole["usage"]["completion_tokens"] == 40


def test_a_text_stream_has_texts_and_no_role(server):
    stream = chunks(post(server, "/v1/completions", {"prompt": "abc", "max_tokens": 3, "stream": True})[1])
    assert [chunk["choices"][0]["text"] for chunk in stream] == ["d", "e", "f", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in stream] == [None, None, None, "length"]
    assert {chunk["object"] for chunk in stream} == {"text_completion"}
    *texts, last = [choice.keys() for c in stream for choice in c["choices"]]
    assert all(keys == {"index", "text", "logprobs", "finish_reason"} for keys in texts)
    assert last == {"index", "text", "logprobs", "finish_reason", "stop_reason"}


@pytest.mark.parametrize("prompt", ["abc", [0, 99, 100, 101], [[0, 99, 100, 101]], ["abc"]])
def test_a_prompt_may_be_text_or_tokens(server, prompt):
    reply = json.loads(post(server, "/v1/completions", {"prompt": prompt, "max_tokens": 3})[1])
    assert reply["choices"][0]["text"] == "def"
    assert reply["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    ("stop", "text", "num_tokens"), [("gh", "def", 5), (["xyz", "h"], "defg", 5), ("zz", None, 40)]
)
def test_stop_strings_end_the_text_before_them_and_count_the_tokens_that_made_them(server, stop, text, num_tokens):
    body = {"prompt": "abc", "max_tokens": 40, "stop": stop}
    whole = json.loads(post(server, "/v1/completions", body)[1])
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    *stream, last = chunks(post(server, "/v1/completions", streamed)[1])
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == whole["choices"][0]["text"]
    assert stream[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == num_tokens
    if text is not None:
        assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (text, "stop")
    server.wait_until_empty()


def test_a_stop_token_ends_the_text_and_is_counted_but_not_shown(server):
    body = {"prompt": "abc", "max_tokens": 40, "stop_token_ids": [2 + ord("f")]}
    reply = json.loads(post(server, "/v1/completions", body)[1])
    assert (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]) == ("de", "stop")
    assert reply["usage"]["completion_tokens"] == 3


def test_force_think_begins_the_reply_inside_think(thinker):
    stream = chunks(post(thinker, "/v1/chat/completions", chat("abc", max_tokens=2, stream=True))[1])
    deltas = [chunk["choices"][0]["delta"] for chunk in stream]
    assert "".join(delta.get("content", "") for delta in deltas) == ""
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert re.fullmatch(r"\w\w", reasoning)
    whole = json.loads(post(thinker, "/v1/chat/completions", chat("abc", max_tokens=2))[1])
    assert whole["choices"][0]["message"]["reasoning_content"] == reasoning
    assert whole["usage"]["completion_tokens"] == 2, "prompt tokens are not counted as generated"


def test_models_lists_every_served_name(thinker):
    _, _, body = thinker.get("/v1/models")
    listing = json.loads(body)
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == ["a", "b"]
    assert all(model["object"] == "model" and isinstance(model["created"], int) for model in listing["data"])
    assert json.loads(thinker.get("/v1/models/b")[2])["id"] == "b"
    reply = json.loads(post(thinker, "/v1/completions", {"prompt": "a", "max_tokens": 1})[1])
    assert reply["model"] == "a"


def test_a_silent_stream_sends_comments_that_clients_skip():
    """Steps take many times as long as the allowed silence, and longer than any scheduling delay."""
    options = ("--step_s", "1.2", "--keep_alive_s", "0.1", "--max_batch_size", "1", "--max_new_tokens", "10")
    with ServerProcess(*options, module=FAKE) as server:
        _, data = post(server, "/v1/chat/completions", chat("abc", max_tokens=2, stream=True))
        comments = data.count(": keep-alive\n\n")
        assert comments >= 3
        assert data.startswith(": keep-alive\n\n"), "a comment is sent before the first token"
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks(data.replace(": keep-alive\n\n", ""))]
        assert deltas == [
            {"role": "assistant", "content": ""},
            {"content": "d"},
            {"content": "e"},
            {},
        ]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.completions.create(model="m", prompt="abc", max_tokens=1, stream=True)
            assert "".join(chunk.choices[0].text for chunk in stream) == "d"
        _, data = post(server, "/v1/completions", {"prompt": "abc", "max_tokens": 1})
        assert "keep-alive" not in data


def test_a_stream_that_is_not_silent_sends_no_comments(server):
    _, data = post(server, "/v1/completions", {"prompt": "abc", "max_tokens": 100, "stream": True})
    assert "keep-alive" not in data
