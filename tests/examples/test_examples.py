"""Every program in examples/ runs as a reader would run it, with the built-in model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.servers.process import ServerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS_WHAT_BALLAST_IS = "mixture-of-experts"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


def run(argv: list[str | Path], server: ServerProcess | None = None) -> str:
    environment = dict(os.environ)
    if server is not None:
        environment |= {"OPENAI_BASE_URL": f"{server.url}/v1", "ANTHROPIC_BASE_URL": server.url}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test_and_a_line_in_the_readme() -> None:
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    tested, listed = Path(__file__).read_text(), (EXAMPLES / "README.md").read_text()
    elsewhere = ("monitoring/test_compose.py", "clients/check_langchain.py", "clients/check_openai_agents.py")
    tested += "".join((Path(__file__).parents[1] / name).read_text() for name in elsewhere)
    assert {name for name in names if f'"{name}"' not in tested and f'examples/{name}"' not in tested} == set()
    assert {name for name in names if f"]({name})" not in listed} == set()


def test_curl(server: ServerProcess) -> None:
    whole, _, stream = run(["sh", EXAMPLES / "chat.sh"], server).partition("\n")
    assert SAYS_WHAT_BALLAST_IS in json.loads(whole)["choices"][0]["message"]["content"]
    assert stream.rstrip().endswith("data: [DONE]")


def test_a_conversation_with_openais_client(server: ServerProcess) -> None:
    """The second turn is streamed."""
    reply = run([sys.executable, EXAMPLES / "openai_chat.py"], server)
    assert SAYS_WHAT_BALLAST_IS in reply
    assert "10002" in reply


def test_a_chat_with_anthropics_client(server: ServerProcess) -> None:
    assert SAYS_WHAT_BALLAST_IS in run([sys.executable, EXAMPLES / "anthropic_messages.py"], server)


def test_a_tool_is_called_with_its_argument(server: ServerProcess) -> None:
    assert run([sys.executable, EXAMPLES / "openai_tools.py"], server).startswith("get_weather {'city':")


def test_a_reply_fits_its_schema(server: ServerProcess) -> None:
    reply = run([sys.executable, EXAMPLES / "openai_json.py"], server)
    assert reply.startswith("{'name': ")
    assert "'age': " in reply


def test_the_library() -> None:
    assert SAYS_WHAT_BALLAST_IS in run([sys.executable, EXAMPLES / "library.py"])


def test_the_batch(tmp_path: Path) -> None:
    run([sys.executable, "-m", "ballast", "batch", EXAMPLES / "batch.jsonl", tmp_path / "replies.jsonl"])
    replies = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    assert {reply["custom_id"]: reply["response"]["status_code"] for reply in replies} == {"first": 200, "second": 200}
