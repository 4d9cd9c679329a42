"""`make demo` without the setup: it starts a server, shows a reply, prints the next steps, and stops its own server."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "demo.py"


@pytest.fixture
def demo(tmp_path):
    """The tool in a separate folder, so that it does not affect a running demo."""
    (tmp_path / "tools").mkdir()
    tool = tmp_path / "tools" / "demo.py"
    tool.write_text(TOOL.read_text())
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)

    def run(command):
        python = tmp_path / ".venv" / "bin" / "python"
        return subprocess.run([python, tool, command], capture_output=True, text=True, timeout=200, check=False)

    yield run
    run("stop")


def test_the_demo_chats_prints_next_steps_and_can_be_repeated_and_stopped(demo):
    for _ in range(2):
        shown = demo("start")
        assert shown.returncode == 0, shown.stderr
        assert "$ ballast serve" in shown.stdout
        assert "Hello!" in shown.stdout.split("tokens in")[0].split("curl", 1)[1]
        assert "make demo-stop" in shown.stdout
    url = next(word for word in shown.stdout.split() if word.startswith("http") and word.endswith("/metrics"))
    with urllib.request.urlopen(url, timeout=60) as page:
        assert b"ballast_generation_tokens_total" in page.read()
    assert demo("stop").stdout == "Stopped.\n"
    assert demo("stop").stdout == "No demo server is running.\n"


def test_a_damaged_note_of_the_servers_id_is_no_obstacle(demo, tmp_path):
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "server.pid").write_text("")
    assert demo("stop").stdout == "No demo server is running.\n"
