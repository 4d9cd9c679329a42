"""Requirements from the tests of llama.cpp's server and vLLM's entrypoints, in our words, tested on this server.

Each row names the test that it follows. peers-tests.md in this folder lists which of their tests pass, which concern
missing features, and which differ on purpose. Every passing row of that page has a row here, or names our test that
covers it.
"""

import json
import re

import httpx
import pytest

from devkit.servers.process import ServerProcess

WORDS = "I believe the meaning of life is"
CHAT = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
PARTS = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best book"}]
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--max_new_tokens", str(NEW_TOKENS), "--max_batch_size", "2") as process:
        yield process


def ask(server, path, body):
    return httpx.post(server.url + path, json=body, timeout=60)


def events(reply):
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# --- llama.cpp: test_completion.py ------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "returns"), [(8, False), (256, True)])
def test_llama_completion(server, wanted, returns):
    body = {"prompt": WORDS, "n_predict": wanted, "return_tokens": returns, "ignore_eos": True}
    reply = ask(server, "/completion", body).json()
    given = min(wanted, NEW_TOKENS)
    assert reply["timings"]["predicted_n"] == reply["tokens_predicted"] == given
    assert reply["timings"]["prompt_n"] + reply["tokens_cached"] == reply["tokens_evaluated"]
    assert (reply["truncated"], reply["stop_type"]) == (False, "limit")
    assert len(reply["tokens"]) == (given if returns else 0)
    assert reply["has_new_line"] is ("\n" in reply["content"])


def test_llama_completion_stream_equals_the_whole_reply(server):
    body = {"prompt": WORDS, "n_predict": 256, "temperature": 0, "ignore_eos": True, "seed": 5}
    whole, stream = ask(server, "/completion", body).json(), events(ask(server, "/completion", body | {"stream": True}))
    assert "".join(event["content"] for event in stream) == whole["content"]
    *parts, end = stream
    assert all(part["stop"] is False and part["tokens"] for part in parts)
    assert (end["stop"], end["stop_type"], end["truncated"]) == (True, "limit", False)
    assert end["has_new_line"] is whole["has_new_line"]
    assert end["generation_settings"] == whole["generation_settings"] == {"n_predict": NEW_TOKENS, "seed": 5}
    assert end["timings"]["predicted_n"] == NEW_TOKENS


def test_llama_seed(server):
    def text(seed, temperature):
        body = {"prompt": WORDS, "n_predict": 24, "seed": seed, "temperature": temperature, "cache_prompt": False}
        return ask(server, "/completion", body).json()["content"]

    assert len({text(42, 0.0) for _ in range(3)}) == len({text(42, 1.0) for _ in range(3)}) == 1
    assert len({text(seed, 1.0) for seed in range(3)}) == 3


def test_llama_tokens_as_prompt(server):
    tokens = ask(server, "/tokenize", {"content": WORDS, "add_special": True}).json()["tokens"]
    body = {"temperature": 0, "n_predict": 4}
    one = ask(server, "/completion", body | {"prompt": tokens}).json()["content"]
    for prompts in ([tokens, tokens], [tokens, WORDS]):
        batch = ask(server, "/completion", body | {"prompt": prompts}).json()
        assert [each["content"] for each in batch] == [one, one]


@pytest.mark.parametrize("stream", [False, True])
def test_llama_probabilities(server, stream):
    body = {"prompt": WORDS, "n_probs": 10, "temperature": 0.0, "n_predict": 5, "ignore_eos": True, "stream": stream}
    reply = ask(server, "/completion", body)
    whole = events(reply) if stream else [reply.json()]
    found = [token for each in whole for token in each.get("completion_probabilities", ())]
    assert len(found) == 5
    for token in found:
        assert len(token["top_logprobs"]) == 10
        for each in (token, *token["top_logprobs"]):
            assert (type(each["id"]), type(each["token"]), type(each["bytes"])) == (int, str, list)
            assert each["logprob"] <= 0


@pytest.mark.parametrize("as_pairs", [True, False])
def test_llama_logit_bias(server, as_pairs):
    body = {"prompt": WORDS, "temperature": 0, "n_predict": 8, "return_tokens": True}
    first = ask(server, "/completion", body).json()["tokens"][0]
    bias = [[first, -100]] if as_pairs else {str(first): -100}
    assert ask(server, "/completion", body | {"logit_bias": bias}).json()["tokens"][0] != first


def test_llama_context(server):
    long = ask(server, "/completion", {"prompt": "word " * 6000, "n_predict": 8})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    as_many = ask(server, "/completion", {"prompt": "Hi", "n_predict": -1, "ignore_eos": True}).json()
    assert as_many["tokens_predicted"] == NEW_TOKENS


# --- llama.cpp: test_chat_completion.py --------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("content", ["What is the best book", PARTS])
def test_llama_chat(server, path, content):
    messages = [CHAT[0], {"role": "user", "content": content}]
    reply = ask(server, path, {"model": None, "messages": messages, "max_tokens": 8, "ignore_eos": True}).json()
    assert "cmpl" in reply["id"]
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (8, "length")
    assert reply["choices"][0]["message"]["role"] == "assistant"


def test_llama_chat_stream(server):
    body = {"messages": CHAT, "max_tokens": 8, "ignore_eos": True, "stream": True, "temperature": 0}
    first, *others = events(ask(server, "/chat/completions", body))
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert {event["id"] for event in others} == {first["id"]}
    assert not any("role" in event["choices"][0]["delta"] for event in others)
    assert [event["choices"][0]["finish_reason"] for event in others] == [None] * (len(others) - 1) + ["length"]
    assert not others[-1]["choices"][0]["delta"].get("content")


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"response_format": {"type": "json_object", "schema": {"const": "42"}}}, r'"42"'),
        ({"response_format": {"type": "json_object", "schema": {"enum": [-3000]}}}, "-3000"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}}, r'"foooooo"'),
        ({"response_format": {"type": "json_object"}}, r"\s*\{.*"),
        ({"json_schema": {"const": "42"}}, r'"42"'),
        ({"grammar": 'root ::= "a"{5,5}'}, "aaaaa"),
        ({"response_format": {"type": "sound"}}, None),
        ({"response_format": {"type": "json_object", "schema": 123}}, None),
        ({"response_format": {"type": "json_object", "schema": {"type": 123}}}, None),
        ({"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}}, None),
    ],
    ids=lambda each: json.dumps(each)[:70],
)
def test_llama_forms(server, form, pattern):
    reply = ask(server, "/chat/completions", {"messages": CHAT, "max_tokens": 16, "temperature": 0} | form)
    if pattern is None:
        assert (reply.status_code, reply.json()["error"]["param"].split(".")[0]) == (400, "response_format")
    else:
        assert re.fullmatch(pattern, reply.json()["choices"][0]["message"]["content"], re.DOTALL), reply.text


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "string",
        [123],
        [{}],
        [{"role": 123}],
        [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}],
    ],
    ids=json.dumps,
)
def test_llama_rejects_invalid_messages(server, messages):
    reply = ask(server, "/chat/completions", {"messages": messages})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("messages")


def test_llama_timings(server):
    options = {"stream": True, "stream_options": {"include_usage": True}, "timings_per_token": True}
    first, *others = events(ask(server, "/chat/completions", {"messages": CHAT, "max_tokens": 10} | options))
    assert "timings" not in first
    assert others[-1]["choices"] == []
    timings = others[-1]["timings"]
    assert {"prompt_per_second", "predicted_per_second"} <= timings.keys()
    assert timings["predicted_n"] <= 10


@pytest.mark.parametrize("stream", [False, True])
def test_llama_chat_logprobs_spell_the_text(server, stream):
    body = {"messages": CHAT, "max_tokens": 5, "logprobs": True, "top_logprobs": 10, "temperature": 0}
    reply = ask(server, "/v1/chat/completions", body | {"stream": stream})
    choices = [event["choices"][0] for event in (events(reply) if stream else [reply.json()])]
    output = "".join(
        choice.get("delta", choice.get("message"))["content"] or ""
        for choice in choices
        if choice.get("delta", choice.get("message")).get("content")
    )
    tokens = [token for choice in choices for token in (choice.get("logprobs") or {}).get("content") or ()]
    assert "".join(token["token"] for token in tokens if token["token"] in output) == output
    assert all(token["logprob"] <= 0 and token["bytes"] and token["top_logprobs"] for token in tokens)


def test_llama_progress(server):
    messages = [{"role": "user", "content": "This is a test" * 100}]
    body = {"messages": messages, "max_tokens": 2, "stream": True, "return_progress": True}
    for is_cached in (False, True):
        found = [
            event["prompt_progress"]
            for event in events(ask(server, "/chat/completions", body))
            if "prompt_progress" in event
        ]
        assert found
        assert 0 <= found[0]["cache"] < found[0]["processed"], "the first event comes after a step, not before"
        assert (found[0]["cache"] > 0) is is_cached
        assert found[-1]["processed"] == found[-1]["total"] > 0
        counts = [each["processed"] for each in found]
        assert counts == sorted(set(counts))


def test_llama_choices(server):
    reply = ask(server, "/chat/completions", {"messages": CHAT, "max_tokens": 8, "n": 2}).json()
    assert [(each["index"], each["message"]["role"]) for each in reply["choices"]] == [
        (0, "assistant"),
        (1, "assistant"),
    ]


# --- llama.cpp: test_basic.py, test_tokenize.py, test_infill.py, test_compat_oai_responses.py ---------------------


def test_llama_props_models_slots(server):
    props = httpx.get(server.url + "/props").json()
    slots = httpx.get(server.url + "/slots").json()
    assert props["total_slots"] == len(slots) == 2
    assert props["default_generation_settings"]["n_ctx"] == slots[0]["n_ctx"] > 0
    assert "params" not in slots[0]
    [model] = httpx.get(server.url + "/models").json()["data"]
    assert model["id"] == "ballast-tiny"
    page = httpx.get(server.url + "/")
    assert (page.status_code, "<!doctype html>" in page.text.lower()) == (200, True)


def test_llama_tokenize(server):
    words = "What is the capital of France ?"
    tokens = ask(server, "/tokenize", {"content": words}).json()["tokens"]
    assert ask(server, "/detokenize", {"tokens": tokens}).json()["content"].strip() == words
    with_bos = ask(server, "/tokenize", {"content": words, "add_special": True}).json()["tokens"]
    assert with_bos[1:] == tokens
    pieces = ask(server, "/tokenize", {"content": "unicode 媽 and 🤗", "with_pieces": True}).json()["tokens"]
    assert all(token["id"] >= 0 and len(token["piece"]) > 0 for token in pieces)


@pytest.mark.parametrize(
    "extra", [{}, {"filename": "ok"}, {"filename": 123, "text": "abc"}, {"filename": 1, "text": 4}]
)
def test_llama_infill_rejects_an_invalid_file(server, extra):
    body = {"input_extra": [extra], "input_prefix": "a", "prompt": "b", "input_suffix": "c"}
    assert ask(server, "/infill", body).status_code == 400


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "json_schema", "name": "test", "schema": {"const": "foooooo"}}, '"foooooo"'),
        ({"type": "json_object"}, r"\s*\{.*"),
        ({"type": "text"}, ".*"),
        ({"type": "json_schema", "name": "test"}, None),
    ],
    ids=lambda each: json.dumps(each)[:40],
)
def test_llama_responses(server, form, pattern):
    reply = ask(server, "/responses", {"input": "Write an example", "max_output_tokens": 16, "text": {"format": form}})
    if pattern is None:
        assert reply.status_code == 400
        return
    body = reply.json()
    assert body["id"].startswith("resp_")
    [message] = [item for item in body["output"] if item["type"] == "message"]
    assert message["id"].startswith("msg_")
    assert re.fullmatch(pattern, message["content"][0]["text"], re.DOTALL)


# --- vLLM: basic/test_basic.py, completion/test_completion.py, completion/test_prompt_validation.py ---------------


def test_vllm_version_and_health(server):
    assert re.fullmatch(r"\d+\.\d+\S*", httpx.get(server.url + "/version").json()["version"])
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/load").json() == {"server_load": 0}


def test_vllm_wrong_content_type(server):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = httpx.post(server.url + "/v1/chat/completions", content="{}", headers=headers)
    assert reply.status_code == 415


def test_vllm_completion(server):
    body = {"prompt": WORDS, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    reply = ask(server, "/v1/completions", body).json()
    [choice], usage = reply["choices"], reply["usage"]
    assert (choice["finish_reason"], usage["completion_tokens"]) == ("length", 5)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert "cached_tokens" in usage["prompt_tokens_details"]
    assert choice["logprobs"] is None
    *parts, end = events(ask(server, "/v1/completions", body | {"stream": True}))
    assert "".join(part["choices"][0]["text"] for part in (*parts, end)) == choice["text"]
    assert [part["choices"][0]["finish_reason"] for part in (*parts, end)] == [None] * len(parts) + ["length"]


@pytest.mark.parametrize(("requested", "least", "most"), [(0, 1, 1), (5, 5, 6), (20, 20, 21)])
def test_vllm_logprobs(server, requested, least, most):
    body = {"prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0, "logprobs": requested, "ignore_eos": True}
    found = ask(server, "/v1/completions", body).json()["choices"][0]["logprobs"]
    assert least <= len(found["top_logprobs"][0]) <= most
    assert len(found["token_logprobs"]) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 30, "stream": True}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stream": False, "stream_options": {"include_usage": None}}, "stream_options"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {"continuous_usage_stats": None}}, "stream_options"),
        ({"stream": False, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"prompt": None, "prompt_embeds": []}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [999999]}, "prompt"),
        ({"structured_outputs": {"json": {"properties": {"foo": "bar"}, "type": "object"}}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "[.*"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": 'root ::= wordinvalid\n\nb ::= "x" b'}}, "structured_outputs"),
        ({"kv_transfer_params": {"return_last_hidden_state": True}}, "kv_transfer_params"),
    ],
    ids=lambda each: json.dumps(each)[:60],
)
def test_vllm_refusals(server, fields, param):
    reply = ask(server, "/v1/completions", {"prompt": WORDS, "max_tokens": 2} | fields)
    assert reply.status_code == 400, reply.text
    assert param in (reply.json()["error"]["param"] or "").split(".")[0] or param in reply.json()["error"]["message"]


@pytest.mark.parametrize("requested", [0, 1, None])
def test_vllm_prompt_logprobs(server, requested):
    body = {"prompt": ["A robot may not", "My name is"], "max_tokens": 1} | (
        {} if requested is None else {"prompt_logprobs": requested}
    )
    for choice in ask(server, "/v1/completions", body).json()["choices"]:
        assert (choice.get("prompt_logprobs") is None) is (requested is None)


@pytest.mark.parametrize("stream", [False, True])
def test_vllm_choices_differ_and_end_each(server, stream):
    body = {"prompt": WORDS, "max_tokens": 50, "n": 3, "temperature": 2.0, "seed": 42, "stream": stream}
    reply = ask(server, "/v1/completions", body)
    choices = [choice for event in (events(reply) if stream else [reply.json()]) for choice in event["choices"]]
    texts = ["".join(choice["text"] for choice in choices if choice["index"] == n) for n in range(3)]
    assert len(set(texts)) == 3
    assert sum(choice["finish_reason"] is not None for choice in choices) == 3


@pytest.mark.parametrize(
    ("options", "in_chunks", "at_end"),
    [
        ({"include_usage": False, "continuous_usage_stats": False}, False, False),
        ({"include_usage": False, "continuous_usage_stats": True}, False, False),
        ({"include_usage": True, "continuous_usage_stats": False}, False, True),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({}, False, False),
    ],
    ids=json.dumps,
)
def test_vllm_stream_options(server, options, in_chunks, at_end):
    body = {"prompt": WORDS, "max_tokens": 5, "stream": True, "stream_options": options}
    found = events(ask(server, "/v1/completions", body))
    chunks, ends = [each for each in found if each["choices"]], [each for each in found if not each["choices"]]
    assert {each.get("usage") is not None for each in chunks} == {in_chunks}
    assert len(ends) == at_end
    for usage in (each["usage"] for each in (*ends, *(chunks if in_chunks else ()))):
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


@pytest.mark.parametrize("prompt", [WORDS, [5, 6, 7, 8, 9]])
def test_vllm_batches_and_echo(server, prompt):
    body = {"prompt": [prompt, prompt], "max_tokens": 5, "temperature": 0}
    first, second = ask(server, "/v1/completions", body).json()["choices"]
    assert first["text"] == second["text"]
    echoed = ask(server, "/v1/completions", body | {"prompt": prompt, "echo": True, "logprobs": 1}).json()["choices"][0]
    assert echoed["text"].endswith(first["text"])
    found = echoed["logprobs"]
    assert len(found["tokens"]) == len(found["text_offset"]) == len(found["token_logprobs"]) > 5
    has_first = isinstance(prompt, list)  # a text follows BOS, which is not echoed
    assert (found["token_logprobs"][0] is None) is (found["top_logprobs"][0] is None) is has_first


@pytest.mark.parametrize(("side", "kept"), [("right", [5, 6, 7, 8]), ("left", [9, 10, 11, 12])])
def test_vllm_truncation_side(server, side, kept):
    cut = {"truncate_prompt_tokens": 4, "truncation_side": side, "return_token_ids": True}
    body = {"prompt": list(range(5, 13)), "max_tokens": 1} | cut
    assert ask(server, "/v1/completions", body).json()["choices"][0]["prompt_token_ids"] == kept


# --- llama.cpp: test_compat_anthropic.py -------------------------------------------------------------------------

TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALLED = [
    {"role": "user", "content": "What's the weather?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "X"}}]},
]
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny, 25°C"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "You are a helpful assistant."},
        {"messages": [{"role": "user", "content": PARTS}]},
        {"messages": [CHAT[1], {"role": "assistant", "content": "Hi there!"}, CHAT[1]]},
        {"tools": [TOOL]},
        {"messages": [*CALLED, {"role": "user", "content": [RESULT]}]},
        {"messages": [*CALLED, {"role": "user", "content": [{"type": "text", "text": "Here:"}, RESULT]}]},
        {"messages": [*CALLED, {"role": "user", "content": [RESULT | {"is_error": True}]}]},
        {"stop_sequences": ["zzzz"], "temperature": 0.5, "top_k": 40, "top_p": 0.9},
        {"thinking": {"type": "enabled", "budget_tokens": 50}},
        {"metadata": {"user_id": "test_user_123"}},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_llama_messages(server, fields):
    body = {"model": "test", "max_tokens": 12, "messages": [CHAT[1]]} | fields
    reply = ask(server, "/v1/messages", body)
    assert reply.status_code == 200, reply.text
    output = reply.json()
    assert (output["type"], output["role"]) == ("message", "assistant")
    assert output["stop_reason"] in ("end_turn", "max_tokens", "tool_use")
    assert {"input_tokens", "output_tokens", "cache_read_input_tokens"} <= output["usage"].keys()
    assert "timings" not in output
    counted = ask(server, "/v1/messages/count_tokens", {name: body[name] for name in body if name != "max_tokens"})
    assert counted.json() == {
        "input_tokens": output["usage"]["input_tokens"] + output["usage"]["cache_read_input_tokens"]
    }


def test_llama_messages_stream(server):
    body = {"model": "test", "max_tokens": 12, "messages": [CHAT[1]], "stream": True}
    found = events(ask(server, "/v1/messages", body))
    kinds = [event["type"] for event in found if event["type"] != "ping"]
    begin = ["message_start", "content_block_start", "content_block_delta"]
    assert (kinds[:3], kinds[-3:]) == (begin, ["content_block_stop", "message_delta", "message_stop"])
    [start] = [event["message"] for event in found if event["type"] == "message_start"]
    assert (start["content"], start["usage"]["output_tokens"] >= 0) == ([], True)
    assert {event["index"] for event in found if "index" in event} == {0}
    assert not any("timings" in event for event in found)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"messages": None}, "messages"), ({"max_tokens": None}, "max_tokens"), ({"messages": []}, "messages")],
)
def test_llama_messages_refused(server, fields, param):
    reply = ask(server, "/v1/messages", {"model": "test", "max_tokens": 12, "messages": [CHAT[1]]} | fields)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert param in reply.json()["error"]["message"]


# --- vLLM: chat_completion/test_chat.py, test_chat_logit_bias_validation.py, test_non_object_body_validation.py,
# --- basic/test_return_token_ids.py ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "num"), [({"logprobs": False}, None), ({"top_logprobs": 0}, 0), ({"top_logprobs": 5}, 5)]
)
def test_vllm_chat_logprobs(server, fields, num):
    body = {"messages": CHAT, "max_completion_tokens": 2, "temperature": 0, "logprobs": True} | fields
    found = ask(server, "/v1/chat/completions", body).json()["choices"][0]["logprobs"]
    assert (None if found is None else len(found["content"][0]["top_logprobs"])) == num


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"logprobs": True, "top_logprobs": 21, "stream": True}, ["top_logprobs"]),
        ({"logprobs": True, "top_logprobs": 30}, ["top_logprobs"]),
        ({"prompt_logprobs": -1}, ["prompt_logprobs"]),
        ({"logit_bias": {"9999999": 1.0}}, ["logit_bias", "9999999", "vocabulary"]),
        ({"logit_bias": {"not_a_token_id": 50}}, ["logit_bias", "not_a_token_id"]),
        ({"logit_bias": {"1": "not_a_number"}}, ["logit_bias"]),
        ({"cache_salt": ""}, ["cache_salt"]),
        ({"structured_outputs": {"regex": {"1": "Python"}}}, ["structured_outputs.regex"]),
        ({"seed": 2**63}, ["seed"]),
        ({"seed": -(2**63) - 1}, ["seed"]),
        ({"messages": [{"role": "my-custom-role", "content": "a"}]}, ["messages.0.role"]),
        ({"stream_options": {"include_usage": True}}, ["stream_options"]),
    ],
    ids=lambda each: json.dumps(each)[:60],
)
def test_vllm_chat_refusals(server, fields, output):
    reply = ask(server, "/v1/chat/completions", {"messages": CHAT, "max_tokens": 2} | fields)
    assert reply.status_code == 400
    assert [part for part in output if part not in reply.json()["error"]["message"]] == []


@pytest.mark.parametrize("data", [b"this is not valid json{{{", b'["not", "an", "object"]', b"42", b"null"])
def test_vllm_rejects_bodies_that_are_not_objects(server, data):
    reply = httpx.post(server.url + "/v1/chat/completions", content=data, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("requested", [1, 2])
def test_vllm_chat_prompt_logprobs(server, requested):
    reply = ask(
        server, "/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, "prompt_logprobs": requested}
    ).json()
    assert requested <= len(reply["prompt_logprobs"][3]) <= requested + 1


def test_vllm_token_ids(server):
    shown = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 1, "temperature": 0}
    body = {"prompt": "I love coding 🚀", "max_tokens": 8} | shown
    choice = ask(server, "/v1/completions", body).json()["choices"][0]
    named = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
    assert choice["token_ids"] == named
    assert "🚀" in ask(server, "/detokenize", {"tokens": choice["prompt_token_ids"]}).json()["prompt"]
    stream = events(ask(server, "/v1/completions", body | {"stream": True}))
    assert stream[0]["choices"][0]["prompt_token_ids"] == choice["prompt_token_ids"]
    assert [token for event in stream for token in event["choices"][0].get("token_ids") or ()] == named
    without = ask(server, "/v1/completions", body | {"return_token_ids": False}).json()["choices"][0]
    assert without.keys().isdisjoint({"token_ids", "prompt_token_ids"})


@pytest.mark.parametrize("name", ["choice", "regex", "json"])
def test_vllm_structured_chat(server, name):
    form = {"choice": ["Rust", "Go"], "regex": "Rust|Go", "json": {"enum": ["Rust", "Go"]}}[name]
    body = {"messages": CHAT, "max_tokens": 10, "structured_outputs": {name: form}}
    output = ask(server, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert output.strip('"') in ("Rust", "Go")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [CHAT[1] | {"extra_field": "0"}]},
        {"response_format": {"type": "text"}},
        {"min_characters": 10},
        {"n": 2, "seed": 42},
    ],
    ids=json.dumps,
)
def test_vllm_chats_that_are_answered(server, fields):
    reply = ask(server, "/v1/chat/completions", {"messages": CHAT, "max_tokens": 4} | fields)
    assert reply.status_code == 200
    assert [choice["index"] for choice in reply.json()["choices"]] == list(range(fields.get("n", 1)))
    named = {"messages": "messages.0.extra_field", "min_characters": "min_characters"}
    assert reply.headers.get("x-ballast-ignored") == named.get(next(iter(fields)))
