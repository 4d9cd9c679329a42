"""Choices, log probabilities, echoes and their usage, through the real `openai` client and a random model."""

import math

import pytest

from devkit.servers.process import ServerProcess

HELLO = [{"role": "user", "content": "hello"}]
GO_ON = {"ignore_eos": True}
PROMPT = "Once upon a time there was a ship"


@pytest.fixture(scope="module")
def server(noise):
    options = ("--max_new_tokens", "256", "--cache_lens", "8192", "--chunk_size", "32", "--max_batch_size", "4")
    with ServerProcess(*noise, *options) as process:
        yield process


def chat(client, *, extra=None, **fields):
    fields = {"temperature": 0, "max_tokens": 12} | fields
    return client.chat.completions.create(model="m", messages=HELLO, extra_body=GO_ON | (extra or {}), **fields)


def complete(client, *, extra=None, **fields):
    fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8} | fields
    return client.completions.create(model="m", extra_body=GO_ON | (extra or {}), **fields)


def test_choices_differ_but_are_reproducible_and_the_prompt_counts_once(client):
    def texts(seed):
        reply = chat(client, n=5, seed=seed, temperature=1.0)
        assert [choice.index for choice in reply.choices] == list(range(5))
        assert reply.usage.completion_tokens == 5 * 12
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + 5 * 12
        return [choice.message.content for choice in reply.choices]

    first = texts(3)
    assert len(set(first)) == 5
    assert texts(3) == first
    assert chat(client, seed=3, temperature=1.0).choices[0].message.content == first[0]
    assert chat(client).usage.prompt_tokens == chat(client, n=3).usage.prompt_tokens


def test_the_cached_part_of_a_prompt_counts_once_for_all_choices(client):
    prompt = "a prompt that no other test sends, " * 12
    cold, warm = (complete(client, prompt=prompt, n=3).usage for _ in range(2))
    assert cold.prompt_tokens_details.cached_tokens == 0
    assert 0 < warm.prompt_tokens_details.cached_tokens < warm.prompt_tokens


def test_streamed_choices_are_interleaved_and_equal_the_whole_reply(client):
    fields = {"n": 3, "seed": 5, "temperature": 1.0, "logprobs": True, "top_logprobs": 2}
    whole = chat(client, **fields)
    texts, tokens, reasons, roles = [""] * 3, [[] for _ in range(3)], [None] * 3, []
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
            tokens[choice.index] += choice.logprobs.content if choice.logprobs else []
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert tokens == [choice.logprobs.content for choice in whole.choices]
    assert (reasons, roles) == (["length"] * 3, [0, 1, 2])
    assert chunk.usage.completion_tokens == whole.usage.completion_tokens == 36


def test_the_stream_helper_collects_every_choice(client):
    fields = {"n": 2, "seed": 1, "temperature": 1.0, "max_tokens": 20, "logprobs": True}
    stops = [choice.message.content[6:8] for choice in chat(client, **fields).choices]
    whole = chat(client, stop=stops, **fields)
    with client.chat.completions.stream(model="m", messages=HELLO, stop=stops, extra_body=GO_ON, **fields) as stream:
        final = stream.get_final_completion()
    for got, expected in zip(final.choices, whole.choices, strict=True):
        assert got.finish_reason == "stop"
        assert got.message.content == expected.message.content
        assert got.logprobs.content == expected.logprobs.content


def test_log_probabilities_spell_the_text_and_belong_to_one_distribution(client):
    (choice,) = chat(client, logprobs=True, top_logprobs=20, max_tokens=20).choices
    raw = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
    assert raw.decode(errors="replace") == choice.message.content
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 20
        assert token.logprob == token.top_logprobs[0].logprob  # greedy
        probabilities = [math.exp(top.logprob) for top in token.top_logprobs]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1.0 + 1e-5
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client).choices[0].logprobs is None


def test_echoed_prompts_are_scored_independently_and_consistently(client):
    prompts = ["word " * 60, "word " * 30, PROMPT]
    first, second, third = complete(client, prompt=prompts, echo=True, logprobs=3, n=1).choices
    assert [choice.index for choice in (first, second, third)] == [0, 1, 2]
    common = len(second.logprobs.tokens) - 8 - 1  # the last token of the shorter text may differ
    assert first.logprobs.token_logprobs[:common] == second.logprobs.token_logprobs[:common]
    assert first.logprobs.top_logprobs[:common] == second.logprobs.top_logprobs[:common]
    assert third.logprobs.token_logprobs != second.logprobs.token_logprobs[: len(third.logprobs.tokens)]
    twice = complete(client, prompt=prompts[2], echo=True, logprobs=3, n=2).choices
    assert twice[0].logprobs == twice[1].logprobs == third.logprobs


def test_offsets_point_into_the_echoed_text(client):
    choice = complete(client, echo=True, logprobs=1).choices[0]
    assert choice.text.startswith(PROMPT)
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    for token, offset, following in zip(
        logprobs.tokens, logprobs.text_offset, [*logprobs.text_offset[1:], len(choice.text)], strict=True
    ):
        assert token.startswith("bytes:") or choice.text[offset:following] == token


def test_a_streamed_completion_has_the_same_log_probabilities_and_echo(client):
    fields = {"prompt": [PROMPT, "The sea 中"], "n": 2, "seed": 2, "temperature": 1.0, "echo": True, "logprobs": 2}
    whole = complete(client, **fields)
    output = [{"text": "", "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []} for _ in range(4)]
    for chunk in complete(client, stream=True, **fields):
        (choice,) = chunk.choices
        output[choice.index]["text"] += choice.text
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset") if choice.logprobs else ():
            output[choice.index][name] += getattr(choice.logprobs, name)
    assert output == [{"text": choice.text, **choice.logprobs.model_dump()} for choice in whole.choices]


def test_the_first_prompt_token_has_no_score_and_generation_is_optional(client):
    reply = complete(client, prompt=[[5, 6, 7]], echo=True, logprobs=0, max_tokens=0)
    assert reply.choices[0].logprobs.token_logprobs[0] is None
    assert len(reply.choices[0].logprobs.tokens) == 3
    assert reply.usage.completion_tokens == 0
    assert (
        complete(client, prompt=[[5, 6, 7]], echo=True, logprobs=0, max_tokens=0, stream=False).choices == reply.choices
    )


def test_a_stop_string_ends_one_choice_and_is_included_on_request(client):
    fields = {"n": 4, "seed": 11, "temperature": 1.0, "max_tokens": 30}
    whole = [choice.message.content for choice in chat(client, **fields).choices]
    stop = whole[2][5:8]
    cut = chat(client, stop=stop, **fields)
    kept = chat(client, stop=stop, extra={"include_stop_str_in_output": True}, **fields)
    for text, without, with_stop in zip(whole, cut.choices, kept.choices, strict=True):
        at = text.find(stop)
        assert without.message.content == (text if at < 0 else text[:at])
        assert with_stop.message.content == (text if at < 0 else text[: at + len(stop)])
        assert without.finish_reason == ("length" if at < 0 else "stop")
    assert cut.choices[2].finish_reason == "stop"


def test_continuous_usage_counts_up_to_the_final_one(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert len(set(counts)) > 6


def test_a_long_prompts_progress_and_speed_are_reported(client):
    chunks = list(
        complete(client, prompt="word " * 300, stream=True, extra={"return_progress": True, "timings_per_token": True})
    )
    progress = [chunk.prompt_progress for chunk in chunks if getattr(chunk, "prompt_progress", None)]
    assert len(progress) > 3
    done = [each["processed"] for each in progress]
    assert done == sorted(set(done))
    assert all(each["processed"] <= each["total"] for each in progress)
    timings = [chunk.timings for chunk in chunks if getattr(chunk, "timings", None)]
    assert timings[-1]["predicted_n"] == 8
    assert timings[-1]["prompt_n"] + timings[-1]["cache_n"] == progress[0]["total"]
    assert timings[-1]["prompt_ms"] > 0


def test_a_client_that_leaves_frees_every_choice(server, client):
    stream = chat(client, n=64, max_tokens=256, stream=True)  # far more than is computed meanwhile
    for _, _ in zip(range(12), stream, strict=False):
        pass
    assert server.metrics()["ballast_kv_cache_used_tokens"] > 0
    stream.close()
    server.wait_until_empty()
