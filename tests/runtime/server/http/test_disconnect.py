"""When a client disconnects, its request is aborted in any state: no slot, queue position or KV stays held."""

import http.client
import json
import socket

import pytest

from devkit.servers.process import FAKE, JSON, ServerProcess

# Slow enough to observe each state, fast enough to keep tests short.
SLOW = (
    "--step_s",
    "0.05",
    "--max_batch_size",
    "1",
    "--max_new_tokens",
    "1000",
    "--chunk_size",
    "16",
    "--probe_s",
    "0.4",
)


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*SLOW, module=FAKE) as process:
        yield process


def post(server, body, path="/v1/completions"):
    """A connection on which the request is sent and nothing is read."""
    data = json.dumps({"max_tokens": 1000, **body}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data)
    return connection


def leave_rudely(connection):
    """Close with a reset (RST) instead of a FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [socket.socket.close, leave_rudely])
def test_leaving_during_decode_frees_everything(server, stream, leave):
    connection = post(server, {"prompt": "abc", "stream": stream})
    before = server.metrics()["ballast_generation_tokens_total"]
    server.wait_for(lambda now: now["ballast_generation_tokens_total"] >= before + 2)
    leave(connection)
    server.wait_until_empty()


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_prefill_frees_everything(server, stream):
    before = server.metrics()["ballast_generation_tokens_total"]
    connection = post(server, {"prompt": "x" * 8000, "stream": stream})
    server.wait_for(lambda now: now["ballast_kv_cache_used_tokens"] > 0)
    connection.close()
    server.wait_until_empty()
    assert server.metrics()["ballast_generation_tokens_total"] == before


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue_frees_the_slot(server, stream):
    running = post(server, {"prompt": "abc"})
    server.wait_for(lambda now: now["ballast_batch_running"] == 1)
    queued = post(server, {"prompt": "def", "stream": stream})
    server.wait_for(lambda now: now["ballast_requests_waiting"] == 1)
    queued.close()
    metrics = server.wait_for(lambda now: now["ballast_requests_waiting"] == 0)
    assert metrics["ballast_batch_running"] == 1, "the running request must not be affected"
    running.close()
    server.wait_until_empty()


def test_leaving_is_noticed_after_a_body_of_many_packets_too(server):
    connection = post(server, {"prompt": "abc", "user": "x" * 1_000_000})
    server.wait_for(lambda now: now["ballast_batch_running"] == 1)
    connection.close()
    server.wait_until_empty()


def test_a_client_that_leaves_is_counted_as_such(server):
    name = 'ballast_requests_total{endpoint="completions",outcome="client_gone"}'
    before = server.metrics().get(name, 0)
    connection = post(server, {"prompt": "abc"})
    server.wait_for(lambda now: now["ballast_batch_running"] == 1)
    connection.close()
    server.wait_for(lambda now: now.get(name, 0) == before + 1)


def test_disconnecting_during_the_body_is_harmless(server):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    connection.close()
    server.wait_until_empty()
    assert server.get("/livez")[0] == 200


def test_a_hundred_clients_that_leave_at_any_moment_leave_nothing_behind(server):
    connections = [post(server, {"prompt": "x" * (1 + 37 * n % 400), "stream": n % 2 == 0}) for n in range(100)]
    for connection in connections[::2]:
        connection.close()
    for connection in connections[1::2]:
        leave_rudely(connection)
    server.wait_until_empty()
    assert server.get("/readyz")[0] == 200


def test_a_stop_string_frees_the_request_at_once(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "abc", "stop": "ef", "max_tokens": 1000}), JSON)
    (choice,) = json.loads(connection.getresponse().read())["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("d", "stop")
    server.wait_until_empty()
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 20])
def test_a_client_that_only_ends_its_sending_gets_the_reply(server, stream, num_tokens):
    """The longer reply takes longer than the server waits before it checks whether the client still reads."""
    connection = post(server, {"prompt": "abc", "stream": stream, "max_tokens": num_tokens})
    connection.shutdown(socket.SHUT_WR)
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    body = reply.read()
    text = "".join(
        choice["text"]
        for line in body.decode().splitlines()
        if line and line != "data: [DONE]"
        for choice in json.loads(line.removeprefix("data: "))["choices"]
    )
    assert (reply.status, text) == (200, "defghijklmnopqrstuvwxyz"[:num_tokens])
    assert connection.recv(1) == b"", "the connection is closed after the reply"
    connection.close()


def test_a_half_closed_client_that_disconnects_later_is_noticed(server):
    connection = post(server, {"prompt": "abc"})
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.close()
    server.wait_until_empty()


def test_a_half_closed_http_1_0_client_counts_as_disconnected(server):
    data = json.dumps({"prompt": "abc", "max_tokens": 1000}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(data) + data)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    server.wait_until_empty()
