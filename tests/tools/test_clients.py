"""Checks of third-party clients run only on loopback, and by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.clients.__main__ import main

RUN = Path(__file__).resolve().parents[1] / "clients" / "run.py"
CHECK = """
import contextlib, socket

def check_stream():
    with contextlib.suppress(OSError):
        {leak}
"""


@pytest.mark.parametrize(
    ("leak", "host"),
    [
        ("socket.create_connection(('192.0.2.1', 80), timeout=5)", "192.0.2.1"),
        ("socket.getaddrinfo('telemetry.invalid', 443)", "telemetry.invalid"),
        ("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))", "192.0.2.1"),
        ("socket.create_connection(('127.0.0.1', 9), timeout=5)", None),
        ("socket.getaddrinfo('localhost', 80)", None),
    ],
)
def test_a_client_that_connects_to_another_machine_fails_its_checks(tmp_path, leak, host):
    (tmp_path / "check_it.py").write_text(CHECK.format(leak=leak))
    command = [sys.executable, str(RUN), "it", "http://127.0.0.1:1", "http://127.0.0.1:2"]
    run = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode == 0) == (host is None), run.stderr
    assert host is None or f"it wanted to reach {host}" in run.stderr


def test_an_unknown_client_is_rejected_with_the_known_ones(capsys):
    assert main(["aider", "opennai"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("clients: unknown: opennai; known clients: ")
    assert " aider," in message
    assert message.count("\n") == 1
