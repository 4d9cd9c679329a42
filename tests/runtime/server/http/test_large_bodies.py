"""A body of any size beyond the limit gets a 413, whether the client reads the reply early, late or never."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from devkit.servers.process import FAKE, JSON, ServerProcess

LIMIT = 1 << 20
MIB = 1 << 20
SIZES = (2 * MIB, 33 * MIB, 66 * MIB)
PATHS = ("/v1/chat/completions", "/v1/messages")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--max_body_bytes", str(LIMIT), module=FAKE) as process:
        yield process


def in_chunks(size: int) -> Iterator[bytes]:
    for _ in range(0, size, MIB):
        yield b"x" * MIB


def assert_too_large(status: int, reply: str) -> None:
    assert status == 413
    message = json.loads(reply)["error"]["message"]
    assert message == f"the request's body is larger than {LIMIT} bytes; send less, or raise --max_body_bytes"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_everything_first_reads_the_reply(
    server: ServerProcess, path: str, size: int, chunked: bool
) -> None:
    headers = JSON if chunked else {**JSON, "Content-Length": str(size)}
    reply = httpx.post(server.url + path, content=in_chunks(size), headers=headers, timeout=60)
    assert_too_large(reply.status_code, reply.text)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the test runs curl; install it, or put it into PATH")
@pytest.mark.parametrize("options", [[], ["-H", "Expect:"], ["-H", "Transfer-Encoding: chunked"]])
def test_curl_shows_the_reply(server: ServerProcess, tmp_path: Path, options: list[str]) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x" * 66 * MIB)
    url = server.url + PATHS[0]
    command = ["curl", "-sS", "-H", "Content-Type: application/json", *options, "-w", "\n%{http_code}", url]
    run = subprocess.run(
        [*command, "--data-binary", f"@{body}"], capture_output=True, text=True, timeout=60, check=True
    )
    reply, status = run.stdout.rsplit("\n", 1)
    assert_too_large(int(status), reply)


def test_a_rejection_is_sent_before_the_rest_of_the_body_arrives(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        head = f"POST {PATHS[0]} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {1 << 40}\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 1000)
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
        connection.sendall(b"x" * MIB)
    assert httpx.get(server.url + "/livez", timeout=60).status_code == 200
