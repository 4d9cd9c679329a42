"""ModelScope's hub is queried with its own API, and trusted as little as Hugging Face's."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ballast import cli
from ballast.errors import BallastError, ConfigError
from ballast.hub.apis import ModelScope
from ballast.hub.naming import HubName, read_name
from ballast.hub.pull import Found, find, pull
from ballast.hub.remote import Hub, cache_of
from devkit.stores.hub_server import HubServer, hub_server

NAME = read_name("modelscope.cn/org/tiny:Q8_0")
WEIGHTS = bytes(range(256)) * 20_000


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HubServer, Hub]]:
    files = {"tiny-Q8_0.gguf": WEIGHTS, "tiny-Q4_K_M.gguf": b"other", "config.json": b"{}", "model.py": b"evil"}
    with hub_server(files) as (server, endpoint):
        monkeypatch.setenv("MODELSCOPE_DOMAIN", endpoint)
        monkeypatch.setenv("MODELSCOPE_API_TOKEN", "secret")
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
        hub = dataclasses.replace(Hub.of_environment(NAME.site), sleep=lambda _: None)
        yield server, hub
        hub.client.close()


def gguf(found: Found) -> bytes:
    return (found.store.snapshot(found.commit) / found.choice.files[0].path).read_bytes()


def test_names_select_the_hub() -> None:
    assert HubName("org/tiny", "Q8_0", "master", "modelscope.cn") == NAME
    assert NAME.written == "modelscope.cn/org/tiny"
    assert read_name("www.modelscope.ai/a/b@v1") == HubName("a/b", None, "v1", "modelscope.ai")
    assert read_name("hf.co/a/b:Q8_0") == read_name("huggingface.co/a/b:Q8_0") == read_name("a/b:Q8_0")
    with pytest.raises(ConfigError):
        read_name("example.org/a/b")


def test_a_model_is_downloaded_completely_into_its_own_folder(
    served: tuple[HubServer, Hub], capsys: pytest.CaptureFixture[str]
) -> None:
    server, hub = served
    server.token = "secret"
    pulled = pull(NAME, hub, None, io.StringIO())
    assert gguf(pulled) == WEIGHTS
    assert {path for path, _ in server.ranges} == {"tiny-Q8_0.gguf", "config.json"}
    assert server.leaked == []
    assert pull(NAME, hub, None, io.StringIO()).missing == ()
    assert gguf(find(NAME, dataclasses.replace(hub, is_offline=True), io.StringIO())) == WEIGHTS
    server.files["tiny-Q8_0.gguf"] = WEIGHTS[::-1]
    assert pull(NAME, hub, None, io.StringIO()).commit != pulled.commit, "other files, another commit"

    assert cli.main(["models"]) == 0
    assert f"modelscope.cn/org/tiny:Q8_0@{pulled.commit}  4.9 MiB\n" in capsys.readouterr().out
    assert cli.main(["models", "--remove", "modelscope.cn/org/tiny"]) == 0
    assert "modelscope.cn/org/tiny: 9.8 MiB removed" in capsys.readouterr().out
    assert hub.cache == cache_of("modelscope.cn")
    assert not pulled.store.path.exists()


@pytest.mark.parametrize("status", [206, 200])
def test_a_broken_transfer_resumes_with_either_status(served: tuple[HubServer, Hub], status: int) -> None:
    server, hub = served
    server.range_status, server.break_after = status, 2 << 20
    assert gguf(pull(NAME, hub, None, io.StringIO())) == WEIGHTS
    assert [begin for path, begin in server.ranges if path.endswith(".gguf")] == [0, 2 << 20, 4 << 20]


def test_a_missing_model_is_reported_with_the_available_names(served: tuple[HubServer, Hub]) -> None:
    server, hub = served
    with pytest.raises(ConfigError, match=r"\n  modelscope\.cn/org/tiny:Q4_K_M  5 B"):
        find(dataclasses.replace(NAME, quant=None), hub, io.StringIO())
    server.token = "another"
    with pytest.raises(ConfigError, match="MODELSCOPE_API_TOKEN is valid"):
        find(NAME, hub, io.StringIO())


def blob(**fields: Any) -> dict[str, Any]:
    listed = {"Path": "x-Q8_0.gguf", "Type": "blob", "Size": 5, "Sha256": "a" * 64} | fields
    return {"Data": {"Files": [listed]}}


@pytest.mark.parametrize(
    "answer",
    [
        blob(Path="../x-Q8_0.gguf"),
        blob(Path="/etc/x-Q8_0.gguf"),
        blob(Size=-5),
        blob(Size="5"),
        blob(Sha256="../../x"),
        blob(Sha256=""),
        {"Data": None, "Code": 10010205001, "Message": "record \x1b[2J not found"},
        {"Data": {"Files": "x"}},
        {"Data": []},
        {"Code": "200"},
    ],
    ids=repr,
)
def test_hostile_listings_are_refused(served: tuple[HubServer, Hub], answer: dict[str, Any]) -> None:
    server, hub = served
    server.answer = answer
    with pytest.raises(BallastError) as refused:
        pull(NAME, hub, None, io.StringIO())
    assert "\x1b" not in str(refused.value)
    assert not hub.cache.exists()


def test_a_given_commit_is_used_as_is() -> None:
    name = dataclasses.replace(NAME, revision="c" * 40)
    body = b'{"Code": 200, "Data": {"Files": []}}'
    assert ModelScope().read_listing(name, body).commit == "c" * 40
