"""A chat template that exhausts its limits fails only its own request: the server serves others and can be stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast.generation.text_threads import TEXT_THREADS
from devkit.servers.process import ServerProcess

SCRIPT = ("devkit.servers.script_server",)
TEMPLATE = """
{%- if 'swallow' in messages[0].content -%}
    {%- for a in range(99999) %}{% for b in range(99999) -%}
        {%- if messages is sequence %}{% endif -%}
    {%- endfor %}{% endfor -%}
{%- elif 'hold' in messages[0].content -%}
    {{- (messages | length + 6) ** 99999999 % 10 -}}
{%- elif 'fill' in messages[0].content -%}
    {{- ('\\t' * messages | length * 99999).expandtabs(99999) -}}
{%- endif -%}
{{ messages[0].content }}"""
TIMEOUT_S = 60


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[ServerProcess]:
    file = tmp_path / "hostile.jinja"
    file.write_text(TEMPLATE)
    with ServerProcess("--chat_template", str(file), module=SCRIPT) as process:
        yield process


def chat(server: ServerProcess, content: str) -> tuple[int, Any]:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    return reply.status_code, reply.json()


@pytest.mark.parametrize(
    ("attack", "limit"),
    [
        ("hold", "it ran for more than 2 s"),
        ("fill", "it takes more than 512 MiB of memory"),
    ],
)
def test_other_requests_are_served_during_an_endless_template(hostile: ServerProcess, attack: str, limit: str) -> None:
    with ThreadPoolExecutor() as pool:
        attacks = [pool.submit(chat, hostile, attack) for _ in range(TEXT_THREADS)]
        while not any(attack.done() for attack in attacks):
            assert hostile.get("/livez")[0] == 200
            text = httpx.post(f"{hostile.url}/v1/completions", json={"prompt": "a", "max_tokens": 8}, timeout=TIMEOUT_S)
            assert text.status_code == 200
        for stopped in attacks:
            status, reply = stopped.result(TIMEOUT_S)
            assert (status, reply["error"]["param"]) == (400, "messages")
            assert reply["error"]["message"] == f"the model's chat template was stopped: {limit}"
    assert chat(hostile, "hello")[0] == 200


def test_an_endless_template_does_not_prevent_the_server_from_stopping(hostile: ServerProcess) -> None:
    children = Path(f"/proc/{hostile.process.pid}/task/{hostile.process.pid}/children")
    (guarded,) = children.read_text().split()
    with ThreadPoolExecutor() as pool:
        for _ in range(TEXT_THREADS):
            pool.submit(chat, hostile, "swallow")
        wait_until_busy(int(guarded))
        hostile.send_signal(signal.SIGTERM)
        assert hostile.wait(TIMEOUT_S) == 0
        assert not Path(f"/proc/{guarded}").exists()


def wait_until_busy(pid: int) -> None:
    """Wait until the process has begun the work that uses CPU time."""
    before = cpu_ticks(pid)
    deadline = time.monotonic() + TIMEOUT_S
    while cpu_ticks(pid) < before + 10:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
