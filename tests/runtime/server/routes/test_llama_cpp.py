"""/completion and /infill, compatible with llama.cpp's server."""

import json

import httpx
import pytest

from ballast.generation.infill import infill_prompt, require_fim
from ballast.text.loading import load_text
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.llama_cpp.request import InfillRequest, LlamaRequest, parse_llama
from ballast.wire.openai.request import to_sampling
from devkit.models.vocabulary import byte_metadata
from devkit.servers.process import FAKE, ServerProcess


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--max_new_tokens", "50", module=FAKE) as process:
        yield process


def post(server, **body):
    reply = httpx.post(server.url + "/completion", json={"prompt": "abcd", "n_predict": 4} | body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert "x-ballast-ignored" not in reply.headers
    return reply


def test_a_text_is_continued(server):
    reply = post(server, cache_prompt=True, id_slot=0, samplers=None, mirostat=0, repeat_penalty=1.1).json()
    assert (reply["content"], reply["stop"], reply["stop_type"], reply["tokens"]) == ("efgh", True, "limit", [])
    assert (reply["tokens_predicted"], reply["tokens_evaluated"], reply["index"]) == (4, 5, 0)
    assert (reply["model"], reply["prompt"], reply["truncated"]) == ("alphabet", "abcd", False)
    assert reply["timings"]["predicted_n"] == 4


def test_a_streams_last_event_has_the_fields_of_the_whole_reply(server):
    lines = post(server, stream=True).text.strip().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["content"] for event in events) == "efgh"
    assert [token for event in events for token in event["tokens"]] == [2 + ord(letter) for letter in "efgh"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    whole = post(server).json()
    for field in ("stop_type", "stopping_word", "prompt", "tokens_predicted", "tokens_evaluated"):
        assert events[-1][field] == whole[field]


@pytest.mark.parametrize("name", ["n_predict", "max_tokens"])
def test_a_prompt_alone_is_computed_and_stays_cached(server, name):
    long = "abcd" * 20
    requested = {"prompt": long, "n_predict": None, name: 0}
    reply = post(server, **requested).json()
    assert (reply["content"], reply["tokens"], reply["stop"], reply["stop_type"]) == ("", [], True, "limit")
    assert (reply["tokens_predicted"], reply["tokens_evaluated"]) == (0, 81)
    streamed = post(server, stream=True, **requested).text.strip().split("\n\n")
    assert [json.loads(line.removeprefix("data: "))["content"] for line in streamed] == [""]
    assert post(server, prompt=long).json()["tokens_cached"] > 0
    refused = httpx.post(server.url + "/v1/completions", json={"prompt": long, "max_tokens": 0}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_why_it_ends(server):
    reply = post(server, stop=["g"]).json()
    assert (reply["content"], reply["stop_type"], reply["stopping_word"]) == ("ef", "word", "g")


@pytest.mark.parametrize("name", ["include_stop_str_in_output", "no_stop_trim"])
def test_the_text_that_ends_it_is_shown_on_demand(server, name):
    assert [post(server, stop=["g"], **{name: requested}).json()["content"] for requested in (True, False)] == [
        "efg",
        "ef",
    ]


def test_several_are_a_list(server):
    replies = post(server, prompt=["abcd", "ab"], n_cmpl=2).json()
    assert [(each["index"], each["prompt"], each["content"]) for each in replies] == [
        (0, "abcd", "efgh"),
        (1, "abcd", "efgh"),
        (2, "ab", "cdef"),
        (3, "ab", "cdef"),
    ]


def test_probabilities_and_ids_on_demand(server):
    reply = post(server, n_probs=2, return_tokens=True).json()
    assert reply["tokens"] == [2 + ord(letter) for letter in "efgh"]
    first = reply["completion_probabilities"][0]
    assert (first["id"], first["token"], first["bytes"]) == (2 + ord("e"), "e", [ord("e")])
    likeliest, _ = first["top_logprobs"]
    assert likeliest["id"] == first["id"]
    assert "completion_probabilities" not in post(server, n_probs=0).json()


def sampling(**fields):
    body = parse_llama(LlamaRequest, json.dumps({"prompt": "a"} | fields).encode(), 100, IgnoredFields())
    return to_sampling(body, max_tokens=9, eos_ids=frozenset())


def test_the_defaults_are_llamas():
    params = sampling()
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.8, 40, 0.95, 0.05, None)
    assert (sampling(temperature=-1).temperature, sampling(seed=-1).seed, sampling(seed=7).seed) == (0, None, 7)
    assert sampling(logit_bias=[[5, 1.5], [6, False]]).logit_bias == {5: 1.5, 6: -100.0}


@pytest.mark.parametrize(
    ("keyword", "value"), [("format", "zip"), ("pattern", "(?=a)b"), ("minLength", "1"), ("uniqueItems", True)]
)
def test_an_unenforceable_keyword_is_ignored_and_reported(server, keyword, value):
    schema = {"type": "array", "items": {"type": "string"}, "maxItems": 1}
    (schema if keyword == "uniqueItems" else schema["items"])[keyword] = value
    body = {"prompt": "abcd", "n_predict": 2, "json_schema": schema}
    reply = httpx.post(server.url + "/completion", json=body, timeout=60)
    assert (reply.status_code, reply.json()["content"][0]) == (200, "[")
    assert reply.headers["x-ballast-ignored"].endswith(keyword)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"n_probs": 99}, "n_probs"),
        ({"lora": [1]}, "lora"),
    ],
)
def test_invalid_fields_are_rejected_by_name(server, fields, param):
    reply = httpx.post(server.url + "/completion", json={"prompt": "a"} | fields, timeout=60)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_infill_is_rejected_for_a_model_without_infill_tokens(server):
    body = {"input_prefix": "a", "input_suffix": "b"}
    reply = httpx.post(server.url + "/infill", json=body, timeout=60)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "no_infill")
    assert "no tokens to fill gaps" in reply.json()["error"]["message"]


BEGIN, HOLE, END = "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"


def test_the_prompt_for_a_gap():
    text = load_text(None, byte_metadata(user_defined=(BEGIN, HOLE, END)), "bytes.gguf")
    tokenizer = text.tokenizer
    body = {"input_prefix": "ab", "input_suffix": BEGIN, "prompt": "c", "input_extra": [{"filename": "f", "text": "x"}]}
    read = parse_llama(InfillRequest, json.dumps(body).encode(), 100, IgnoredFields())
    ids = infill_prompt(read, text, require_fim(text))
    assert tokenizer.decode(ids[1:], skip_control=False) == f"x{BEGIN}ab{HOLE}{BEGIN}{END}c"
    assert (ids[0], ids.count(tokenizer.id_of(BEGIN))) == (tokenizer.bos_id, 1), (
        "client text must not become control tokens"
    )
