"""Broken, careless or hostile clients: each costs little, affects no other client, and leaves nothing behind."""

import copy
import http.client
import json
import math
import random
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ballast.server.routes.tokens import DetokenizeRequest, TokenizeRequest
from ballast.wire.anthropic.request import MessagesRequest
from ballast.wire.llama_cpp.request import InfillRequest, LlamaRequest
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest
from ballast.wire.responses.request import ResponsesRequest
from devkit.long import times
from devkit.servers.process import FAKE, JSON, ServerProcess

CHUNK = 64
OPTIONS = (
    *("--step_s", "0.002", "--max_batch_size", "8", "--max_new_tokens", "2000", "--cache_lens", "32768"),
    *("--chunk_size", str(CHUNK), "--max_queue", "512", "--head_timeout_s", "2", "--max_body_bytes", "4000000"),
)
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
GROWTH_BYTES = 64 << 20
"""Allocators keep some freed memory; a leak over hundreds of requests would exceed this."""


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*OPTIONS, module=FAKE) as process:
        yield process
        assert process.process.poll() is None, "it ended"
        assert not [event for event in process.events if event["level"] in ("error", "critical")]
        assert "Traceback" not in process.stderr


@pytest.fixture(autouse=True)
def nothing_stays(server):
    """After each test the server holds no request, KV or connection, and uses hardly more memory than before."""
    before = server.metrics()
    yield
    server.wait_until_empty()
    after = server.wait_for(lambda now: now["process_open_fds"] <= before["process_open_fds"] + 2, timeout_s=20)
    assert after["process_resident_memory_bytes"] < before["process_resident_memory_bytes"] + GROWTH_BYTES
    assert server.get("/livez")[0] == server.get("/readyz")[0] == 200


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def send(server, body, path="/v1/completions"):
    """(status, JSON) of a POST of bytes or of JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), JSON)
    response = connection.getresponse()
    reply = json.loads(response.read())
    connection.close()
    return response.status, reply


def expected(num_prompt, num_tokens):
    return "".join(ALPHABET[(num_prompt + n) % 26] for n in range(num_tokens))


def check_that_others_are_served(server):
    status, reply = send(server, {"prompt": "abc", "max_tokens": 5})
    assert (status, reply["choices"][0]["text"]) == (200, "defgh")


def test_slow_loris(server):
    """Request heads that arrive byte by byte are cut off in time, without delaying other clients."""
    connections = [connect(server) for _ in range(200)]
    open_ones = set(connections)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"x" * 1000
    for byte in head:
        check_that_others_are_served(server)
        for connection in list(open_ones):
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                open_ones.discard(connection)
        if not open_ones:
            break
    assert not open_ones
    for connection in connections:
        connection.close()


def test_a_body_of_10_mb(server):
    status, reply = send(server, b'{"prompt": "' + b"a" * 10_000_000 + b'"}')
    assert (status, reply["error"]["type"]) == (413, "invalid_request_error")
    check_that_others_are_served(server)


DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b'{"prompt":' * DEEP,
        b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"messages": [{"role": "user", "content": ' + b"[" * 1000 + b"]" * 1000 + b"}]}",
        b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": '
        + b'{"a":' * 1000
        + b"1"
        + b"}" * 1000
        + b"}",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "\\ud800"}',
        2 * b"\xef\xbb\xbf" + b'{"prompt": "a"}',
        b'{"prompt": "a", "prompt": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": 99999999999999999999999999}',
        b'{"prompt": "a\x00b\x01"}',
        b"null",
        b"",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_json_that_is_too_deep_or_invalid_is_rejected(server, body, path):
    status, reply = send(server, body, path)
    assert (status, bool(reply["error"]["message"])) == (400, True)


WRONG = (
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    2**64 - 1,
    2**70,
    "",
    "x",
    [],
    {},
    [[]],
    [None],
    [1, "a"],
    {"a": None},
    {"type": []},
)
ROUTES = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
    "/v1/completions": (CompletionRequest, {"prompt": "a", "max_tokens": 1}),
    "/v1/messages": (
        MessagesRequest,
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]},
    ),
    "/v1/responses": (ResponsesRequest, {"model": "m", "max_output_tokens": 1, "input": "a"}),
    "/tokenize": (TokenizeRequest, {"content": "a"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
    "/completion": (LlamaRequest, {"prompt": "a", "max_tokens": 1}),
    "/infill": (InfillRequest, {"input_prefix": "a", "input_suffix": "b", "max_tokens": 1}),
}


WRONG_NESTED = (None, True, 1.5, "x", [], {}, [1, "a"], {"type": []})
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NESTED = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"},
            {
                "role": "assistant",
                "content": "a",
                "reasoning_content": "r",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "get", "arguments": "{}"}},
                    {"id": "b", "type": "custom", "custom": {"name": "patch", "input": "x"}},
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "a"},
            {"role": "user", "content": "a", "prefix": False},
        ],
        "tools": [
            {"type": "function", "function": {"name": "get", "parameters": PARAMETERS, "strict": True}},
            {
                "type": "custom",
                "custom": {"name": "patch", "format": {"type": "grammar", "grammar": {"definition": "x"}}},
            },
        ],
        "tool_choice": "none",
        "reasoning": {"enabled": False, "max_tokens": 5},
        "thinking": {"type": "disabled"},
        "stop": ["a"],
        "logit_bias": {"1": 1},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}},
    },
    "/v1/completions": {"prompt": ["a"], "stop": ["a"], "structured_outputs": {"choice": ["a"]}},
    "/v1/messages": {
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": ""},
                    {"type": "tool_use", "id": "a", "name": "get", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "a"}]}],
            },
        ],
        "tools": [
            {"name": "get", "input_schema": PARAMETERS},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "enabled", "budget_tokens": 1},
    },
    "/v1/responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "a", "name": "get", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "a"},
            {"type": "custom_tool_call", "call_id": "b", "name": "patch", "namespace": "n", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "a"}]},
            {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "more"}]},
            {"type": "web_search_call", "action": {"type": "search"}},
        ],
        "tools": [
            {"type": "function", "name": "get", "parameters": PARAMETERS, "strict": False},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "get"}]},
        ],
        "tool_choice": "none",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}},
        "reasoning": {"effort": "none", "summary": "auto"},
    },
}


def paths(value, above=()):
    """The key path of every value in a nested structure."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        yield (*above, key)
        yield from paths(below, (*above, key))


def changed(body, keys, value):
    """A copy with another value at `keys`."""
    body = copy.deepcopy(body)
    *above, last = keys
    at = body
    for key in above:
        at = at[key]
    at[last] = value
    return body


def some(values, number):
    """A third of `values`, different ones for each field, because the same code parses all fields of a type. With
    `--long` all."""
    return [value for index, value in enumerate(values) if (index - number) % times(3, 1) == 0]


@pytest.mark.parametrize("path", list(ROUTES))
def test_wrong_types_everywhere(server, path):
    kind, good = ROUTES[path]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    answered = set()
    bodies = [good | {name: wrong} for number, name in enumerate(kind.model_fields) for wrong in some(WRONG, number)]
    nested = good | NESTED.get(path, {})
    inside = [keys for keys in paths(nested) if len(keys) > 1]
    bodies += [
        changed(nested, keys, wrong) for number, keys in enumerate(inside) for wrong in some(WRONG_NESTED, number)
    ]
    for body in bodies:
        if any(name in good and body[name] is None for name in ("max_tokens", "max_output_tokens")):
            continue  # would request too much memory
        connection.request("POST", path, json.dumps(body), JSON)
        response = connection.getresponse()
        reply = response.read()
        assert response.status in (200, 400, 404), (body, reply)
        answered.add(response.status)
    connection.close()
    assert ({400} if path == "/infill" else {200, 400}) <= answered  # this model has no tokens for gaps


def test_a_thousand_connections(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        connections = [connect(server) for _ in range(1000)]
        check_that_others_are_served(server)
        request = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        for connection in connections:
            connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


def test_half_of_the_clients_drop_at_random_times(server):
    """The other half receive all letters of their replies."""
    dice = random.Random(5)
    plans = [(dice.randint(1, 300), dice.randint(20, 150), dice.random() < 0.5, dice.random()) for _ in range(160)]
    complete = threading.Semaphore(0)

    def client(plan):
        num_prompt, num_tokens, drops, waits_s = plan
        stream = num_prompt % 2 == 0
        data = json.dumps({"prompt": "a" * num_prompt, "max_tokens": num_tokens, "stream": stream}).encode()
        with connect(server) as connection:
            connection.sendall(HEAD % len(data))
            if drops and waits_s < 0.2:
                return  # in the middle of its request
            connection.sendall(data)
            if drops:
                time.sleep(waits_s)
                if waits_s > 0.6:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                return
            reply = b""
            while part := connection.recv(65536):
                reply += part
        body = http_body(reply)
        if stream:
            *frames, end = [line for line in body.decode().split("\n\n") if line.startswith("data: ")]
            assert end == "data: [DONE]"
            text = "".join(json.loads(frame[6:])["choices"][0]["text"] for frame in frames)
        else:
            text = json.loads(body)["choices"][0]["text"]
        assert text == expected(num_prompt, num_tokens)
        complete.release()

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(client, plans))
    for _ in range(sum(not drops for _, _, drops, _ in plans)):
        assert complete.acquire(blocking=False)


def http_body(reply):
    """The body of a raw reply, decoded from its chunks."""
    head, body = reply.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 "), reply
    if b"chunked" not in head:
        return body
    whole = b""
    while body:
        size, body = body.split(b"\r\n", 1)
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return whole


def test_a_long_prompt_does_not_delay_a_stream(server):
    """Counted in steps: a stream gets a token in each step. It also does during the prefill of 4,000 tokens, because
    every step with prompt tokens also decodes, and no step is larger than a chunk."""
    num_prompt = 4000

    def steps():
        now = server.metrics()
        return {
            kind: now.get(f'ballast_step_seconds_count{{kind="{kind}"}}', 0) for kind in ("prefill", "decode", "mixed")
        }

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(
        "POST", "/v1/completions", json.dumps({"prompt": "abc", "max_tokens": 2000, "stream": True}), JSON
    )
    steady = connection.getresponse()
    assert steady.readline().startswith(b"data: ")
    before = steps()
    status, _ = send(server, {"prompt": "b" * num_prompt, "max_tokens": 1})
    after = steps()
    assert status == 200
    assert server.metrics()["ballast_batch_running"] == 1, "the stream must outlast the prompt"
    text = steady.read().decode()
    connection.close()
    assert text.count('"finish_reason":null') >= 1998
    assert after["prefill"] == before["prefill"], "the stream got no token in some step"
    assert after["mixed"] - before["mixed"] >= math.ceil(num_prompt / CHUNK)
    metrics = server.metrics()
    bound = next(le for le in (1, 2, 4, 8, 16, 32, 64) if le >= CHUNK)
    assert metrics[f'ballast_step_tokens_bucket{{le="{float(bound)}"}}'] == metrics["ballast_step_tokens_count"]
