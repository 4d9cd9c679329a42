"""Every rejection has the right status, OpenAI's envelope, and a message that names the field."""

import gzip
import http.client
import json
import socket

import pytest

from devkit.servers.process import FAKE, JSON, ServerProcess

LIMITS = ("--max_new_tokens", "100", "--cache_lens", "512", "--max_body_bytes", "4096", "--strict_model_name")
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
TEXT = {"prompt": "hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*LIMITS, module=FAKE) as process:
        yield process


def send(server, method, path, body=None, headers=None, encode_chunked=False):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, body, {**JSON, **(headers or {})}, encode_chunked=encode_chunked)
    response = connection.getresponse()
    data = json.loads(response.read())
    connection.close()
    return response.status, response.headers, data


def refused(server, path, body):
    """(status, param, code, message) of a rejected body."""
    status, headers, data = send(server, "POST", path, body if isinstance(body, bytes) else json.dumps(body))
    assert headers["Content-Type"] == "application/json"
    assert set(data) == {"error"}
    assert set(data["error"]) == {"message", "type", "param", "code"}
    assert data["error"]["type"] == "invalid_request_error"
    return status, data["error"]["param"], data["error"]["code"], data["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 5.5}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"n": 129}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"priority": 0.5}, "priority"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"stop": ["a", 5]}, "stop.1"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5" * 3000: 1}}, "logit_bias"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"stop_token_ids": [4000000000]}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"lora_path": "x"}, "lora_path"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hello"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_an_unsupported_chat_field_is_rejected_by_name(server, change, param):
    status, named, _, message = refused(server, "/v1/chat/completions", CHAT | change)
    assert (status, named) == (400, param)
    assert param.split(".")[0] in message


@pytest.mark.parametrize(
    "prompt", ["x", [3, 258 + 2], [-1], [], [True], ["a", "b"], {"a": 1}, None, [[3], [4]], [[3], []], 5, "missing"]
)
def test_a_prompt_is_a_text_known_tokens_or_a_list_of_these(server, prompt):
    body = {"max_tokens": 2} if prompt == "missing" else {"max_tokens": 2, "prompt": prompt}
    if prompt in ("x", ["a", "b"], [[3], [4]]):
        assert send(server, "POST", "/v1/completions", json.dumps(body))[0] == 200
        return
    status, named, _, _ = refused(server, "/v1/completions", body)
    assert (status, named) == (400, "prompt")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"prompt": "\\ud800"}', b'{"prompt": NaN}', b"[" * 4000, b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(server, body):
    status, named, _, message = refused(server, "/v1/completions", body)
    assert (status, named) == (400, None)
    assert "body" in message


def test_a_prompt_beyond_the_context_is_rejected_with_the_message_that_clients_expect(server):
    body = {"messages": [{"role": "user", "content": "x" * 600}]}
    status, named, code, message = refused(server, "/v1/chat/completions", body)
    assert (status, named, code) == (400, "messages", "context_length_exceeded")
    assert message.startswith("This model's maximum context length is 512 tokens. However, ")
    status, named, code, _ = refused(server, "/v1/completions", {"prompt": "x" * 450, "max_tokens": 90})
    assert (status, named, code) == (400, "prompt", "context_length_exceeded")


def test_without_max_tokens_a_request_may_use_the_remaining_context(server):
    _, _, data = send(server, "POST", "/v1/completions", json.dumps({"prompt": "x" * 490}))
    cached = data["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert data["usage"] == {
        "prompt_tokens": 491,
        "completion_tokens": 21,
        "total_tokens": 512,
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": 491 - cached,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_fields_that_change_nothing_are_accepted(server):
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "n": 1,
        "logprobs": False,
        "top_logprobs": None,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "logit_bias": {},
        "stop": None,
        "stream_options": None,
    }
    assert send(server, "POST", "/v1/chat/completions", json.dumps(CHAT | harmless))[0] == 200


@pytest.mark.parametrize("name", ["self", "options", "kwargs", "environment", "__class__"])
def test_a_template_argument_may_have_any_name(server, name):
    body = CHAT | {"chat_template_kwargs": {name: 1}}
    assert send(server, "POST", "/v1/chat/completions", json.dumps(body))[0] == 200


def test_another_model_name_is_a_404_in_strict_mode(server):
    status, named, code, _ = refused(server, "/v1/chat/completions", CHAT | {"model": "gpt-4"})
    assert (status, named, code) == (404, "model", "model_not_found")
    assert send(server, "POST", "/v1/chat/completions", json.dumps(CHAT | {"model": "alphabet"}))[0] == 200
    assert send(server, "GET", "/v1/models/gpt/4")[0] == 404
    assert send(server, "GET", "/v1/models/alphabet")[2]["id"] == "alphabet"


def test_every_path_may_end_in_a_slash(server):
    assert send(server, "GET", "/v1/models/")[::2] == send(server, "GET", "/v1/models")[::2]
    for path in ("/livez/", "/version/", "/v1/models/alphabet//"):
        assert send(server, "GET", path)[0] == 200, path
    for path, body in (("/v1/completions/", TEXT), ("/v1/chat/completions/", CHAT), ("/tokenize/", {"prompt": "a"})):
        assert send(server, "POST", path, json.dumps(body))[0] == 200, path
    assert send(server, "POST", "/v1/models/")[0] == 405


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/nowhere", 404),
        ("POST", "/", 405),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
def test_unknown_routes_and_methods_use_the_envelope_too(server, method, path, status):
    found, headers, data = send(server, method, path)
    assert found == status
    assert path in data["error"]["message"]
    assert headers["X-Request-Id"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_rejected_without_a_content_length(server, chunked):
    data = json.dumps(TEXT | {"prompt": "x" * 8000}).encode()
    parts = (data[n : n + 1000] for n in range(0, len(data), 1000)) if chunked else data
    headers = {"Transfer-Encoding": "chunked"} if chunked else {}
    status, _, reply = send(server, "POST", "/v1/completions", parts, headers, encode_chunked=chunked)
    assert status == 413
    assert "4096 bytes" in reply["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "identity, zstd"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/tokenize"])
def test_a_compressed_body_is_refused_by_the_name_of_its_encoding(server, path, encoding):
    data = gzip.compress(json.dumps(CHAT).encode())
    status, _, reply = send(server, "POST", path, data, {"Content-Encoding": encoding})
    assert status == 415
    assert f"Content-Encoding: {encoding};" in reply["error"]["message"]


def test_a_body_with_identity_encoding_is_read(server):
    assert send(server, "POST", "/v1/completions", json.dumps(TEXT), {"Content-Encoding": "identity"})[0] == 200


def test_a_chunked_body_within_the_limit_is_read(server):
    parts = (json.dumps(TEXT).encode()[n : n + 7] for n in range(0, 100, 7))
    parts = [part for part in parts if part]
    status, _, _ = send(server, "POST", "/v1/completions", parts, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert status == 200


def test_expect_100_continue_with_a_large_body_is_rejected_immediately(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99999\r\n\r\n"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(("given", "echoed"), [("abc-123", True), ("with space", False), ("x" * 200, False)])
def test_the_request_id_is_echoed_when_it_is_safe_and_made_up_when_not(server, given, echoed):
    _, headers, _ = send(server, "GET", "/v1/models", headers={"X-Request-Id": given})
    assert (headers["X-Request-Id"] == given) is echoed
    assert headers["X-Request-Id"]


def test_the_log_holds_ids_and_counts_but_no_text(server):
    headers = {"X-Request-Id": "find-me"}
    send(server, "POST", "/v1/completions", json.dumps({"prompt": "a secret", "max_tokens": 3}), headers)
    server.wait_for(lambda _: any(event.get("request_id") == "find-me" for event in server.events))
    (event,) = (event for event in server.events if event.get("request_id") == "find-me")
    assert (event["prompt_tokens"], event["completion_tokens"], event["finish_reason"]) == (9, 3, "length")
    assert event["status"] == 200
    assert "secret" not in json.dumps(server.events) + server.stderr
