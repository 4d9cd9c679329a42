"""A pull reports its result to the calling program."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ballast import cli, process_exit
from ballast.errors import ModelError
from ballast.hub.errors import (
    BusyError,
    FullDiskError,
    NotFoundError,
    NotWritableError,
    TokenError,
    UnreachableError,
    WrongBytesError,
)
from ballast.hub.naming import HubName
from ballast.hub.pull import pull
from ballast.hub.remote import Hub
from ballast.hub.report import progress_page, reason
from devkit.stores.hub_server import COMMIT, HubServer, hub_server

WEIGHTS = b"GGUF" + bytes(5000)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HubServer, Hub]]:
    with hub_server({"tiny-Q8_0.gguf": WEIGHTS, "shard-00001-of-00002.gguf": b"1"}) as (server, endpoint):
        hub = Hub(endpoint, tmp_path / "cache", "secret", sleep=lambda seconds: None)
        monkeypatch.setattr(Hub, "of_environment", staticmethod(lambda _: hub))
        yield server, hub
        hub.client.close()


def reported(tmp_path: Path, name: str = "org/tiny:Q8_0") -> tuple[int, dict[str, Any]]:
    report = tmp_path / "report.json"
    code = cli.main(["pull", name, "--skip_plan", "--report", str(report)])
    return code, json.loads(report.read_text())


def test_a_downloaded_model_is_reported_with_its_commit(served: tuple[HubServer, Hub], tmp_path: Path) -> None:
    code, message = reported(tmp_path)
    assert (code, message["reason"], message["message"]) == (0, "Pulled", f"org/tiny:Q8_0 at {COMMIT}")
    assert Path(message["file"]).read_bytes() == WEIGHTS


def test_a_failure_is_reported_by_a_reason(served: tuple[HubServer, Hub], tmp_path: Path) -> None:
    server, _ = served
    server.token = "another"
    code, message = reported(tmp_path)
    assert (code, message["reason"]) == (2, "TokenRefused")
    assert "HF_TOKEN" in message["message"]
    server.token = None
    assert reported(tmp_path, "org/tiny:Q2_K")[1]["reason"] == "ModelNotFound"
    server.statuses = [503] * 9
    assert reported(tmp_path)[1]["reason"] == "HubUnreachable"
    server.statuses = []
    server.change = lambda body: bytes(len(body))
    code, message = reported(tmp_path)
    assert (code, message["reason"]) == (3, "WrongBytes")


def test_the_report_stays_in_a_containers_termination_log(
    served: tuple[HubServer, Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.json").touch()
    monkeypatch.setattr(process_exit, "TERMINATION_LOG", tmp_path / "report.json")
    served[0].token = "another"
    code, message = reported(tmp_path)
    assert (code, message["reason"]) == (2, "TokenRefused")


def test_every_error_has_its_reason() -> None:
    errors = {
        "HubUnreachable": UnreachableError("r", "p"),
        "WrongBytes": WrongBytesError("r", "p"),
        "TokenRefused": TokenError("k", "v", "w"),
        "ModelNotFound": NotFoundError("k", "v", "w"),
        "PulledElsewhere": BusyError("k", "v", "w"),
        "VolumeNotWritable": NotWritableError("k", "v", "w"),
        "VolumeFull": FullDiskError("m"),
        "PullFailed": ModelError("r", "p"),
    }
    assert {word: reason(error) for word, error in errors.items()} == {word: word for word in errors}


def test_a_path_that_is_not_a_folder_is_reported(served: tuple[HubServer, Hub], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert reported(tmp_path)[1]["reason"] == "VolumeNotWritable"


def test_an_unwritable_report_is_reported(
    served: tuple[HubServer, Hub], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pull", "org/tiny:Q8_0", "--skip_plan", "--report", str(tmp_path / "no/report")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_progress_is_a_page(served: tuple[HubServer, Hub]) -> None:
    server, hub = served
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    shares: list[dict[str, Any]] = []
    with progress_page(port) as told:

        def tell(there: int, total: int) -> None:
            told(there, total)
            shares.append(httpx2.get(f"{url}/readyz").json())

        assert httpx2.get(f"{url}/readyz").json() == {"status": "pulling", "progress": 0.0}
        assert httpx2.get(f"{url}/metrics").status_code == 404
        # a client that connects and sends nothing blocks others only briefly
        with socket.create_connection(("127.0.0.1", port)):
            pull(HubName("org/tiny", "Q8_0"), hub, None, io.StringIO(), on_progress=tell)
        assert httpx2.get(f"{url}/readyz").status_code == 503
        assert cli.main(["pull", "org/tiny:Q8_0", "--progress_port", str(port)]) == 2
    total = len(WEIGHTS)
    assert shares[-1] == {"status": "pulling", "progress": 1.0, "bytes": total, "total_bytes": total}
    assert server.ranges


def test_a_file_name_selects_its_model(served: tuple[HubServer, Hub]) -> None:
    found = pull(HubName("org/tiny", "tiny-Q8_0.gguf"), served[1], None, io.StringIO())
    assert [file.path for file in found.choice.files] == ["tiny-Q8_0.gguf"]


def test_a_complete_model_is_served_from_a_read_only_store(served: tuple[HubServer, Hub]) -> None:
    """Kubernetes mounts it like this. Asserts that nothing is written: root, who may run these tests, ignores
    permissions."""
    _, hub = served
    pull(HubName("org/tiny", "Q8_0"), hub, None, io.StringIO())
    before = {path: path.lstat().st_mtime_ns for path in sorted(hub.cache.rglob("*"))}
    offline = Hub(hub.endpoint, hub.cache, is_offline=True)
    pull(HubName("org/tiny", "Q8_0"), offline, None, io.StringIO())
    offline.client.close()
    assert {path: path.lstat().st_mtime_ns for path in sorted(hub.cache.rglob("*"))} == before
