"""Command line errors before anything starts, and their messages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from kubeconfig import write_credentials

from ballast_operator.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--otlp-endpoint", "collector:4318"], "'collector:4318' is not a valid URL such as http://"),
        (["--resync-seconds", "0"], "'0' is not a number of seconds from 1 to 300"),
        (["--resync-seconds", "nan"], "'nan' is not a number of seconds"),
        (["--resync-seconds", "soon"], "'soon' is not a number of seconds"),
        (["--resync-seconds", "900"], "'900' is not a number of seconds"),
        (["--health-port", "70000"], "'70000' is not a port"),
        (["--namespace", ""], "'' is not a valid name of a namespace"),
        (["--namespace", "a/b"], "'a/b' is not a valid name of a namespace"),
        (["--pod-monitor-label", "release"], "'release' is not KEY=VALUE"),
        (["--pod-monitor-interval", "30"], "'30' is not a valid duration such as 30s"),
        (["--allowed-env", "A*B"], "'A*B' is not a valid variable name"),
        (["--allowed-env", ""], "'' is not a valid variable name"),
        (["--quota", "a:gpu=1"], "'gpu' in 'a:gpu=1' is not a quota; use pods, cpus, gpus, memory"),
        (["--quota", "a:pods=-1"], "pods in 'a:pods=-1': -1 is negative; 0 allows none"),
        (["--quota", "a:pods=1,pods=5"], "pods is twice in 'a:pods=1,pods=5'"),
        (["--quota", "a:pods=1", "--quota", "a:gpus=2"], "a has two quotas; write its limits as one"),
        (["--allowed-image=-x"], "'-x' is not a valid image or prefix of images"),
    ],
)
def test_invalid_flags_are_rejected(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_command_is_reported_with_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    expected = "a command is missing; commands are run, doctor, why, history, undo, render, crd, install\n"
    assert capsys.readouterr().err.endswith(f"ballast-operator: error: {expected}")


@pytest.mark.parametrize("image", ["", " ", "a b", "-x"])
@pytest.mark.parametrize("flag", ["--operator-image", "--runtime-image", "--cpu-runtime-image"])
def test_an_invalid_image_reference_is_rejected(capsys: pytest.CaptureFixture[str], flag: str, image: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["install", f"{flag}={image}"])
    assert ended.value.code == 2
    assert f"{image!r} is not a valid reference of an image" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "{", "5", "- a", "a: b", "\x00", "clusters: 5\ncurrent-context: x\ncontexts: [{name: x, context: 5}]"],
    ids=ascii,
)
def test_an_invalid_kubeconfig_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert main(["doctor"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("ballast-operator: ")
    assert str(config) in message
    assert "set KUBECONFIG" in message


@pytest.mark.parametrize(
    ("context", "words", "namespace"),
    [
        ({"namespace": "models"}, [], "models"),
        ({}, [], "default"),
        ({"namespace": "models"}, ["-n", "other"], "other"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["why", "history", "undo"])
def test_a_service_is_looked_for_in_the_namespace_of_the_context(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    context: dict[str, str],
    words: list[str],
    namespace: str,
) -> None:
    requested: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """No log output during tests."""

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_credentials(tmp_path / "kubeconfig", server.server_port, "token", **context)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        main([command, "chat", *words])
        server.shutdown()
    assert requested[0] == f"/apis/serving.ballast.dev/v1alpha1/namespaces/{namespace}/inferenceservices/chat"


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    write_credentials(tmp_path / "kubeconfig", 1, "token")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = subprocess.run(
            [sys.executable, "-m", "ballast_operator", "run", "--health-host", "127.0.0.1", "--health-port", str(port)],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ran.returncode == 2
    assert f"--health-port {port} of 127.0.0.1" in ran.stderr


@pytest.mark.parametrize(("command", "package"), [("run", "kopf"), ("doctor", "kubernetes"), ("crd", "pydantic")])
def test_a_missing_package_is_reported_with_the_command(command: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from ballast_operator.__main__ import main; sys.exit(main())"
    ran = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr == (
        f"ballast-operator: the package {package} is not installed; "
        "run `make setup` in the clone, or install the wheel with its extra: WHEEL[operator]\n"
    )


@pytest.mark.parametrize("words", [["render", "-f", "manifests/samples/tiny-cpu.yaml"], ["crd"], ["install"]])
def test_a_reader_that_leaves_early_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ballast_operator", *words]
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")
