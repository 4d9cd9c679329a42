"""`ballast batch` produces the same replies as the server, resumes after interruption, and loses no reply."""

from __future__ import annotations

import codecs
import fcntl
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast import cli
from ballast.batch.files import check_requests, read_requests
from ballast.errors import ConfigError
from devkit.servers.process import ServerProcess

LENGTHS = ["--cache_lens", "2048", "--max_new_tokens", "128", "--max_batch_size", "4"]
OPTIONS = [*LENGTHS, "--device", "cpu", "--log_level", "warning"]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore logging: the command configures it for its process, which is the test process here."""
    root, own = logging.getLogger(), logging.getLogger("ballast")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


def request(name: str, url: str = TEXT, **body: Any) -> dict[str, Any]:
    fields = {"temperature": 0, "max_tokens": 4, **({} if url == CHAT else {"prompt": f"What is {name}?"}), **body}
    return {"custom_id": name, "method": "POST", "url": url, "body": fields}


def message(name: str, **body: Any) -> dict[str, Any]:
    """A request for Anthropic's API."""
    text = [{"role": "user", "content": "What is 1 + 1?"}]
    fields = {"model": "m", "max_tokens": 16, "messages": text, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/messages", "body": fields}


def batch(folder: Path, *lines: Any) -> int:
    if lines:
        (folder / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = ["batch", str(folder / "in.jsonl"), str(folder / "out.jsonl"), *OPTIONS]
    return cli.exit_code(lambda: cli.main(command))


def replies(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len({line["id"] for line in lines}) == len(lines), "one line per request"
    return found


def test_replies_are_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requested = [request(f"{n} + 3") for n in range(12)]
    requested.append(request("chat", CHAT, messages=[{"role": "user", "content": "What is 12 + 7?"}], max_tokens=30))
    assert batch(tmp_path, *requested) == 0
    found = replies(tmp_path)
    with ServerProcess(*LENGTHS) as server:
        for each in requested:
            served = httpx.post(server.url + each["url"], json=each["body"], timeout=60).json()
            response = found[each["custom_id"]]["response"]
            assert response["status_code"] == 200
            assert response["body"]["choices"] == served["choices"]
    assert "19" in found["chat"]["response"]["body"]["choices"][0]["message"]["content"]
    assert "13 requests: 13 answered, 0 failed, 0 left" in capsys.readouterr().out


def test_failed_requests_have_an_error_line(tmp_path: Path) -> None:
    lines = [
        request("good"),
        request("hot", temperature=9),
        request("vector", "/v1/embeddings", input="a"),
        request("stream", stream=True),
        {**request("responses", "/v1/responses"), "body": {"input": "What is 1 + 1?", "max_output_tokens": 16}},
        message("message"),
        message("hot message", temperature=9),
        message("streamed message", stream=True),
    ]
    assert batch(tmp_path, *lines) == 1
    found = replies(tmp_path)
    assert found["good"]["error"] is None
    assert found["hot"]["response"]["status_code"] == 400
    assert found["hot"]["response"]["body"]["error"]["param"] == "temperature"
    assert found["vector"]["response"] is None
    assert "/v1/embeddings" in found["vector"]["error"]["message"]
    assert found["stream"]["error"]["code"] == "stream_not_supported"
    assert found["responses"]["response"]["body"]["object"] == "response"
    answered = found["message"]["response"]
    assert (answered["status_code"], answered["body"]["type"]) == (200, "message")
    assert answered["body"]["content"][0]["type"] == "text"
    refused = found["hot message"]["response"]
    assert (refused["status_code"], refused["body"]["type"]) == (400, "error")
    assert refused["body"]["error"]["type"] == "invalid_request_error"
    assert found["streamed message"]["error"]["code"] == "stream_not_supported"


def test_it_resumes_after_the_last_complete_line(tmp_path: Path) -> None:
    lines = [request(f"{n} + {n}") for n in range(5)]
    assert batch(tmp_path, *lines) == 0
    whole = (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)
    kept = b"".join(whole[:2])
    (tmp_path / "out.jsonl").write_bytes(kept + whole[2][:40])
    assert batch(tmp_path) == 0
    again = (tmp_path / "out.jsonl").read_bytes()
    assert again.startswith(kept)
    assert replies(tmp_path).keys() == {line["custom_id"] for line in lines}
    assert batch(tmp_path) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == again, "no request is repeated"


def test_a_signal_leaves_complete_lines_and_a_hint_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    lines = [request("first"), *(request(str(n), max_tokens=128, ignore_eos=True) for n in range(200))]

    def stop() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and not (out.exists() and out.stat().st_size):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert batch(tmp_path, *lines) == 128 + signal.SIGTERM
    stopper.join()
    found = replies(tmp_path)
    assert 0 < len(found) < 201
    assert all(line["response"]["status_code"] == 200 for line in found.values())
    assert "run the same command again to continue" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["{"], "line 1: is not JSON"),
        ([json.dumps(request("a")), json.dumps(request("a"))], "line 2: custom_id a is also used in line 1"),
        (["", json.dumps({"url": TEXT, "body": {}})], "line 2: custom_id is missing"),
        ([json.dumps({**request("a"), "method": "GET"})], "line 1: method"),
        ([], "has no request"),
    ],
)
def test_an_invalid_batch_file_is_rejected_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], text: str
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert batch(tmp_path) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_requests_may_have_a_byte_order_mark_and_windows_line_endings(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    lines = (json.dumps(request(name, max_tokens=1)) for name in ("a", "b"))
    file.write_bytes(codecs.BOM_UTF8 + "\r\n".join(lines).encode())
    assert check_requests(file) == {"a", "b"}
    assert [each.custom_id for each in read_requests(file)] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (json.dumps(request("a")).encode("utf-16"), "is text in UTF-16; save it as UTF-8"),
        (b'{"custom_id": "\xff"}', "line 1: is not JSON"),
        (b"\0", "line 1: is not JSON"),
        (codecs.BOM_UTF8, "has no request"),
        (b"\n" + codecs.BOM_UTF8 + b"{}", "line 2: is not JSON"),
    ],
)
def test_requests_that_are_not_text_are_rejected(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=text):
        check_requests(file)


@pytest.mark.parametrize("held", ["my notes", "my notes\n", '{"custom_id": "b", "response": null, "error": {}}\n'])
def test_an_unrelated_file_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str], held: str) -> None:
    (tmp_path / "out.jsonl").write_text(held)
    assert batch(tmp_path, request("a")) == 2
    assert "choose another file" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_text() == held


def test_two_do_not_write_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "out.jsonl").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert batch(tmp_path, request("a")) == 2
    assert "another `ballast batch` is writing it" in capsys.readouterr().err
