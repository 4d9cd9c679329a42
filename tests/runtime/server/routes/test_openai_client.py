"""The real `openai` client against the real server on a model with random weights."""

import json
import socket
import threading
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from devkit.servers.process import ServerProcess

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(noise):
    options = ("--max_new_tokens", "512", "--cache_lens", "8192", "--chunk_size", "64")
    with ServerProcess(*noise, *options) as process:
        yield process


# A model with random weights rarely ends by itself; these tests rely on that.
GO_ON = {"ignore_eos": True}
CLIENT_GONE = 'ballast_requests_total{endpoint="chat_completions",outcome="client_gone"}'


def greedy(client, **fields):
    return client.chat.completions.create(model="m", messages=HELLO, temperature=0, extra_body=GO_ON, **fields)


def continued(client, prompt, max_tokens, **fields):
    return client.completions.create(
        model="m", prompt=prompt, max_tokens=max_tokens, temperature=0, extra_body=GO_ON, **fields
    )


def test_no_reply_is_longer_than_the_servers_max_new_tokens(client):
    reply = greedy(client, max_tokens=600)
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (512, "length")


def test_a_chat_is_answered_and_counted(client):
    reply = greedy(client, max_tokens=16)
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 16
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 16


def test_max_completion_tokens_is_the_same_limit(client):
    assert greedy(client, max_completion_tokens=7).usage.completion_tokens == 7


def test_a_stream_has_the_same_content_as_the_whole_reply(client):
    whole = greedy(client, max_tokens=60)
    chunks = list(greedy(client, max_tokens=60, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]


def test_the_stream_helper_accumulates_the_same_message(client):
    stop = greedy(client, max_tokens=30).choices[0].message.content[10:14]
    whole = greedy(client, max_tokens=30, stop=stop)
    with client.chat.completions.stream(
        model="m", messages=HELLO, temperature=0, max_tokens=30, stop=stop, extra_body=GO_ON
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].finish_reason == "stop"


def test_text_completions_continue_the_prompt_whole_and_streamed(client):
    whole = continued(client, "Once upon a time", 20)
    stream = continued(client, "Once upon a time", 20, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    assert whole.object == "text_completion"
    assert whole.usage.completion_tokens == 20


def test_the_same_seed_gives_the_same_text_and_another_seed_a_different_one(client):
    def text(seed):
        reply = client.chat.completions.create(
            model="m", messages=HELLO, temperature=1.0, top_p=0.95, seed=seed, max_tokens=24
        )
        return reply.choices[0].message.content

    assert text(7) == text(7)
    assert len({text(seed) for seed in (7, 8, 9)}) == 3


def test_a_stop_string_from_the_middle_of_the_text_ends_it_there(client):
    whole = greedy(client, max_tokens=60).choices[0].message.content
    stop = whole[20:24]
    cut = whole.index(stop)
    reply = greedy(client, max_tokens=60, stop=[stop])
    assert reply.choices[0].message.content == whole[:cut]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens < 60
    streamed = "".join(
        chunk.choices[0].delta.content or "" for chunk in greedy(client, max_tokens=60, stop=[stop], stream=True)
    )
    assert streamed == whole[:cut]


def test_a_second_request_finds_its_prefix_in_the_cache(client):
    messages = [{"role": "user", "content": "Tell me of the sea. " * 40}]
    replies = [
        client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=8) for _ in range(2)
    ]
    assert replies[0].choices[0].message.content == replies[1].choices[0].message.content
    assert replies[1].usage.prompt_tokens_details.cached_tokens > 0


def test_logit_bias_can_forbid_a_token(client):
    def first(**fields):
        extra = GO_ON | fields
        return client.completions.create(model="m", prompt=[3, 4, 5], max_tokens=1, temperature=0, extra_body=extra)

    favourite = first().choices[0].text
    ids = {str(token_id): -100 for token_id in range(1000)}
    assert first(logit_bias=ids).choices[0].text != favourite


def test_the_model_is_listed_and_found(client):
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    assert greedy(client, max_tokens=1).model == "m"


@pytest.mark.parametrize(
    ("fields", "kind", "param", "code"),
    [
        ({"temperature": 9}, openai.BadRequestError, "temperature", None),
        ({"n": 129}, openai.BadRequestError, "n", None),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens", None),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError, "messages",
         "context_length_exceeded"),
    ],
)  # fmt: skip
def test_refusals_arrive_as_the_right_exception(client, fields, kind, param, code):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**({"model": "m", "messages": HELLO} | fields))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.request_id


def test_an_unknown_model_or_route_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="no embeddings"):
        client.embeddings.create(model="m", input="x")


def test_a_stream_cancelled_in_the_middle_frees_its_memory(server, client):
    # The reply has 8 MB, more than the connection's buffers, so the server cannot finish sending it.
    receives_little = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
    before = server.metrics().get(CLIENT_GONE, 0)
    with httpx.Client(transport=httpx.HTTPTransport(socket_options=receives_little), timeout=60) as http:
        slow = client.with_options(http_client=http)
        stream = greedy(slow, max_tokens=512, stream=True, n=8, logprobs=True, top_logprobs=20)
        for _, _ in zip(range(5), stream, strict=False):
            pass
        assert server.metrics()["ballast_kv_cache_used_tokens"] > 0
        stream.close()
    server.wait_until_empty()
    server.wait_for(lambda now: now.get(CLIENT_GONE, 0) == before + 1)


def test_a_client_that_leaves_after_the_last_token_but_before_the_last_byte_is_gone(server):
    """The engine has finished the reply; most of it is still waiting for a client that does not read."""
    fields = {"max_tokens": 512, "n": 8, "stream": True, "logprobs": True, "top_logprobs": 20} | GO_ON
    body = json.dumps({"model": "m", "messages": HELLO, "temperature": 0} | fields).encode()
    before = server.metrics().get(CLIENT_GONE, 0)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", urlsplit(server.url).port))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        server.wait_until_empty()
        assert server.metrics().get(CLIENT_GONE, 0) == before
    server.wait_for(lambda now: now.get(CLIENT_GONE, 0) == before + 1)


async def test_the_async_client_streams_and_cancels_too(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = await client.chat.completions.create(
            model="m", messages=HELLO, temperature=0, max_tokens=512, stream=True, extra_body=GO_ON
        )
        num_chunks = 0
        async for _ in stream:
            num_chunks += 1
            if num_chunks == 5:
                break
        await stream.close()
        reply = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=3, extra_body=GO_ON)
        assert reply.usage.completion_tokens == 3
    server.wait_until_empty()


def test_concurrent_requests_get_the_same_replies_as_alone(server, client):
    prompts = [f"Number {n} of the tale: " + "and then " * (n % 7) for n in range(16)]

    def text(prompt):
        return continued(client, prompt, 12).choices[0].text

    alone = [text(prompt) for prompt in prompts]
    together = [""] * len(prompts)

    def work(n):
        together[n] = text(prompts[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone
    server.wait_until_empty()
