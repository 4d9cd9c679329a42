"""What the command line refuses before anything starts, and how it says so."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from test_api import write_credentials

from ballast_operator.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resync-seconds", "0"], "'0' is no number of seconds from 1 to 300"),
        (["--resync-seconds", "nan"], "'nan' is no number of seconds"),
        (["--resync-seconds", "soon"], "'soon' is no number of seconds"),
        (["--resync-seconds", "900"], "'900' is no number of seconds"),
        (["--health-port", "70000"], "'70000' is no port"),
        (["--namespace", ""], "'' is no name of a namespace"),
        (["--namespace", "a/b"], "'a/b' is no name of a namespace"),
        (["--pod-monitor-label", "release"], "'release' is not KEY=VALUE"),
    ],
)
def test_flags_that_cannot_work_are_refused(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_credentials(tmp_path / "kubeconfig", 1, "token")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["run", "--health-host", "127.0.0.1", "--health-port", str(port)]) == 2
    assert f"--health-port {port} of 127.0.0.1" in capsys.readouterr().err
