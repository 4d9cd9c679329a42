"""Fields of clients of vLLM, SGLang and llama.cpp: each has the same effect as there."""

import json

import httpx
import pytest

from devkit.models.vocabulary import EOS
from devkit.servers.process import FAKE, ServerProcess

SCRIPT = ("devkit.servers.script_server",)
OPTIONS = ("--max_new_tokens", "60", "--cache_lens", "4096", "--max_batch_size", "2")


@pytest.fixture(scope="module")
def alphabet():
    """A server whose replies spell the alphabet; one letter is one token."""
    with ServerProcess(*OPTIONS, module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def thinker():
    """A server whose model reasons on request."""
    with ServerProcess("--chat_template", "deepseek-r1", *OPTIONS, module=SCRIPT) as process:
        yield process


def post(server, path, **body):
    reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert "x-ballast-ignored" not in reply.headers
    return reply


def text(server, **body):
    return post(server, "/v1/completions", **{"prompt": "abcd", "max_tokens": 4} | body).json()


def chat(server, shows="thought", **body):
    messages = [{"role": "user", "content": f"say {shows}"}]
    return post(server, "/v1/chat/completions", **{"messages": messages} | body).json()


def frames(server, path, **body):
    lines = post(server, path, **body, stream=True).text.strip().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"n_predict": 3}, {"max_tokens": 3}),
        ({"n_cmpl": 2}, {"n": 2}),
        ({"stop": "g", "no_stop_trim": True}, {"stop": "g", "include_stop_str_in_output": True}),
        ({"repeat_penalty": 1.5, "seed": 1}, {"repetition_penalty": 1.5, "seed": 1}),
        ({"n_predict": 3, "max_tokens": 3}, {"max_tokens": 3}),
        ({"n_predict": None}, {}),
        ({"do_sample": True, "seed": 1}, {"seed": 1}),
        ({"return_progress": True}, {}),
        ({"spaces_between_special_tokens": False}, {}),
    ],
)
def test_another_dialects_field_name_has_the_same_meaning(alphabet, fields, read):
    assert (
        text(alphabet, **{"max_tokens": None} | fields)["choices"]
        == text(alphabet, **{"max_tokens": None} | read)["choices"]
    )


def test_two_names_for_one_field_must_agree(alphabet):
    body = {"prompt": "a", "max_tokens": 2, "n_predict": 3}
    reply = httpx.post(alphabet.url + "/v1/completions", json=body, timeout=60)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n_predict")


@pytest.mark.parametrize("fields", [{"max_tokens": -1}, {"n_predict": -1}, {}])
def test_max_tokens_defaults_to_the_remaining_context(alphabet, fields):
    body = {"prompt": "ab", **fields}
    reply = post(alphabet, "/v1/completions", **body)
    assert reply.json()["usage"]["completion_tokens"] == 60
    assert "x-ballast-max-tokens" not in reply.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "ab", "max_tokens": 61}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 10**6}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 32000}),
        ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 32000}),
    ],
)
def test_max_tokens_above_the_limit_is_lowered_reported_and_counted(alphabet, path, body):
    before = alphabet.metrics()["ballast_lowered_max_tokens_total"]
    reply = post(alphabet, path, **body)
    assert reply.headers["x-ballast-max-tokens"] == "60"
    assert alphabet.metrics()["ballast_lowered_max_tokens_total"] == before + 1
    within = post(alphabet, path, **{name: 60 if isinstance(value, int) else value for name, value in body.items()})
    assert "x-ballast-max-tokens" not in within.headers


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"stop": ["g", "zz"]}, "g"),
        ({"stop_token_ids": [2 + ord("g")]}, 2 + ord("g")),
        ({"stop_token_ids": [1], "stop": "zz"}, None),
    ],
)
def test_a_choice_reports_the_clients_stop_that_ended_it(alphabet, fields, reason):
    assert text(alphabet, **fields)["choices"][0]["stop_reason"] == reason
    last = frames(alphabet, "/v1/completions", prompt="abcd", max_tokens=4, **fields)[-1]
    assert last["choices"][0]["stop_reason"] == reason
    shown = chat(alphabet, "abc", max_tokens=30, **fields)["choices"][0]
    assert shown["stop_reason"] == reason


def test_an_end_token_is_no_stop_reason_but_a_requested_stop_tag_is(thinker):
    assert chat(thinker)["choices"][0]["stop_reason"] is None
    assert chat(thinker, stop=["</think>"])["choices"][0]["stop_reason"] == "</think>"


def test_a_reply_has_the_id_that_its_request_asks_for(alphabet):
    assert text(alphabet, request_id="mine")["id"] == text(alphabet, rid="mine")["id"] == "cmpl-mine"
    assert text(alphabet, rid="mine")["id"] == "cmpl-mine"
    assert (
        frames(alphabet, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}], request_id="x")[0]["id"]
        == "chatcmpl-x"
    )
    refused = httpx.post(alphabet.url + "/v1/completions", json={"prompt": "a", "request_id": "a b"}, timeout=60)
    assert refused.json()["error"]["param"] == "request_id"


def test_log_probabilities_may_name_tokens_by_their_ids(alphabet):
    e = f"token_id:{2 + ord('e')}"
    logprobs = text(alphabet, max_tokens=1, logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert (logprobs["tokens"], list(logprobs["top_logprobs"][0])) == ([e], [e])
    (entry,) = chat(alphabet, "abc", max_tokens=1, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)[
        "choices"
    ][0]["logprobs"]["content"]
    assert entry["token"] == entry["top_logprobs"][0]["token"] == f"token_id:{2 + entry['bytes'][0]}"


def test_the_prompts_ids_come_with_the_replys(alphabet):
    prompts = [[5, 6, 7], [8, 9]]
    whole = text(alphabet, prompt=prompts, n=2, return_token_ids=True)["choices"]
    assert [choice["prompt_token_ids"] for choice in whole] == [prompts[0], prompts[0], prompts[1], prompts[1]]
    stream = frames(alphabet, "/v1/completions", prompt=prompts, max_tokens=3, return_token_ids=True)
    begun = [(c["index"], c["prompt_token_ids"]) for f in stream for c in f["choices"] if "prompt_token_ids" in c]
    assert sorted(begun) == [(0, prompts[0]), (1, prompts[1])]
    ids = [0, *(2 + ord(letter) for letter in "say abc")]
    assert chat(alphabet, "abc", max_tokens=1, return_token_ids=True)["prompt_token_ids"] == ids
    messages = [{"role": "user", "content": "say abc"}]
    first, *rest = frames(alphabet, "/v1/chat/completions", messages=messages, max_tokens=2, return_token_ids=True)
    assert first["prompt_token_ids"] == ids
    assert not any("prompt_token_ids" in frame for frame in rest)
    assert "prompt_token_ids" not in json.dumps(chat(alphabet, "abc", max_tokens=1))


@pytest.mark.parametrize(
    ("fields", "content", "reasoning"),
    [
        ({}, "It is 4.", "Let me see."),
        ({"include_reasoning": True, "separate_reasoning": True}, "It is 4.", "Let me see."),
        ({"include_reasoning": False}, "It is 4.", None),
        ({"reasoning": {"exclude": True}}, "It is 4.", None),
        ({"separate_reasoning": False}, "Let me see.\n</think>\n\nIt is 4.", None),
        ({"reasoning_format": "none"}, "Let me see.\n</think>\n\nIt is 4.", None),
        ({"reasoning_format": "deepseek"}, "It is 4.", "Let me see."),
    ],
)
def test_where_reasoning_goes(thinker, fields, content, reasoning):
    message = chat(thinker, **fields)["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)
    body = {"messages": [{"role": "user", "content": "say thought"}], **fields}
    deltas = [frame["choices"][0]["delta"] for frame in frames(thinker, "/v1/chat/completions", **body)]
    assert "".join(delta.get("content") or "" for delta in deltas) == content
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == (reasoning or "")


def test_omitted_reasoning_has_no_log_probabilities(thinker):
    tokens = chat(thinker, include_reasoning=False, logprobs=True)["choices"][0]["logprobs"]
    assert "".join(token["token"] for token in tokens["content"]) == "It is 4." + EOS
    assert tokens["reasoning_content"] is None


def token(letter):
    return 2 + ord(letter)


@pytest.mark.parametrize(
    ("fields", "reply"),
    [
        ({"allowed_token_ids": [token("z")]}, "zzzz"),
        ({"allowed_token_ids": [token("e"), token("g")], "logit_bias": {str(token("g")): 100}}, None),
        ({"bad_words": ["e"]}, None),
        ({"bad_words": ["efg"]}, None),
        ({"bad_words": ["xy"]}, "efgh"),
        ({"bad_words": []}, "efgh"),
        ({"allowed_token_ids": [token("q")], "regex": "[a-z]{4}"}, "qqqq"),
    ],
)
def test_bad_words_and_allowed_tokens_restrict_the_reply(alphabet, fields, reply):
    whole = text(alphabet, temperature=0, **fields)
    output = whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 4
    if reply is not None:
        assert output == reply
    for word in fields.get("bad_words", ()):
        assert word not in output
    allowed = fields.get("allowed_token_ids")
    assert allowed is None or {token(letter) for letter in output} <= set(allowed)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"bad_words": ["  "]}, "bad_words.0"),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"allowed_token_ids": [token("q")], "regex": "[a-c]{4}"}, "allowed_token_ids"),
        ({"allowed_token_ids": [token("e")], "bad_words": ["e"]}, "allowed_token_ids"),
    ],
)
def test_rules_that_leave_no_token_are_refused_by_name(alphabet, fields, param):
    reply = httpx.post(alphabet.url + "/v1/completions", json={"prompt": "abcd", **fields}, timeout=60)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"thinking_token_budget": 3}, "Let"),
        ({"thinking_token_budget": -1}, "Let me see."),
        ({"thinking_token_budget": 0}, None),
        ({"thinking_budget_tokens": 3}, "Let"),
        ({"thinking_budget": 3}, "Let"),
        ({"thinking": {"type": "enabled", "budget_tokens": 3}}, "Let"),
        ({"reasoning": {"max_tokens": 3}}, "Let"),
        ({"reasoning": {"max_tokens": 300}}, "Let me see."),
    ],
)
def test_reasoning_ends_with_its_budget(thinker, fields, reasoning):
    message = chat(thinker, max_tokens=40, **fields)["choices"][0]["message"]
    assert message.get("reasoning_content") == reasoning


def test_anthropics_budget_holds_as_well(thinker):
    body = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": "say thought"}]}
    thinking = {"type": "enabled", "budget_tokens": 3}
    content = post(thinker, "/v1/messages", **body, thinking=thinking).json()["content"]
    assert content[0]["thinking"] == "Let"


def test_the_prompts_log_probabilities(alphabet):
    prompts = [[token(letter) for letter in word] for word in ("bcd", "xy")]
    choices = text(alphabet, prompt=prompts, n=2, prompt_logprobs=2)["choices"]
    for choice, prompt in zip(choices, [prompts[0], prompts[0], prompts[1], prompts[1]], strict=True):
        first, *scored = choice["prompt_logprobs"]
        assert first is None
        assert [str(token_id) in each for token_id, each in zip(prompt[1:], scored, strict=True)] == [True] * len(
            scored
        )
    second = choices[0]["prompt_logprobs"][1]
    assert second[str(token("c"))] | {"logprob": -100.0} == {"logprob": -100.0, "rank": None, "decoded_token": "c"}
    ranked = sorted((entry["rank"], entry["decoded_token"]) for entry in second.values() if entry["rank"])
    assert [rank for rank, _ in ranked] == [1, 2]
    assert ranked[0][1] == "a", "the token that the model would have chosen there"
    whole = chat(alphabet, "abc", max_tokens=1, prompt_logprobs=0)
    assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in text(alphabet)["choices"][0]
    for more in ({"stream": True}, {"echo": True}):
        body = {"prompt": "a", "prompt_logprobs": 1, **more}
        refused = httpx.post(alphabet.url + "/v1/completions", json=body, timeout=60)
        assert refused.json()["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize("temperature", [2.5, 5])
def test_high_temperatures_are_accepted(alphabet, temperature):
    assert text(alphabet, temperature=temperature)["choices"][0]["text"]
