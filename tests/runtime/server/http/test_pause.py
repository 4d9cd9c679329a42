"""A server that is paused for a while, for example together with its machine: running requests continue."""

import contextlib
import json
import signal
import socket
import time
import urllib.request

import pytest

from devkit.servers.process import FAKE, JSON, ServerProcess

LIMIT_S = 1.0
PAUSE_S = 1.5
BODY = json.dumps({"prompt": "abc", "max_tokens": 4}).encode()
HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
).encode()


@pytest.fixture
def server():
    limits = [f"--{name}_timeout_s" for name in ("head", "body", "whole_body")]
    options = [word for limit in limits for word in (limit, str(LIMIT_S))]
    with ServerProcess(*options, "--step_s", "0.05", module=FAKE) as process:
        yield process


def everything(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_timeouts_that_expire_during_a_pause_are_extended_once(server):
    with contextlib.ExitStack() as stack:
        in_head, in_body, silent = (
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)) for _ in range(3)
        )
        whole = json.dumps({"prompt": "a", "max_tokens": 9, "stream": True}).encode()
        requested = urllib.request.Request(server.url + "/v1/completions", whole, JSON)
        stream = stack.enter_context(urllib.request.urlopen(requested, timeout=20))
        in_head.sendall(HEAD[:20])
        in_body.sendall(HEAD + BODY[:10])
        silent.sendall(HEAD + BODY[:10])
        assert server.get("/livez")[0] == 200  # it has read all earlier data
        server.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        server.send_signal(signal.SIGCONT)
        assert server.get("/livez")[0] == 200  # it has noticed expired timers
        in_head.sendall(HEAD[20:] + BODY)
        in_body.sendall(BODY[10:])
        assert everything(in_head).startswith(b"HTTP/1.1 200")
        assert everything(in_body).startswith(b"HTTP/1.1 200")
        assert stream.read().rstrip().endswith(b"[DONE]")
        assert everything(silent).startswith(b"HTTP/1.1 408")
