"""Models published with other tools are pulled from an OCI registry, and every blob is verified."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ballast import cli
from ballast.cli import serve_config
from ballast.documents.small_file import DocumentError
from ballast.errors import ConfigError, ModelError
from ballast.hub.errors import NotFoundError, TokenError, WrongBytesError
from ballast.hub.naming import HubName, read_name
from ballast.hub.oci import Registry as RegistryApi
from ballast.hub.pull import Found, find, pull
from ballast.hub.registry_login import Credentials, credentials_for
from ballast.hub.remote import Hub
from ballast.tiny import BUILT_IN
from devkit.stores.cut_proxy import cut_proxy
from devkit.stores.oci_registry import INDEX, MANIFEST, PASSWORD, TITLE, USER, Registry, docker_config, oci_registry

WEIGHTS = bytes(range(256)) * 24_000
OCTETS = "application/octet-stream"
ORAS = [
    (OCTETS, WEIGHTS, {TITLE: "tiny-Q8_0.gguf"}),
    (OCTETS, b"{}", {TITLE: "config.json"}),
    (OCTETS, b"evil", {TITLE: "model.py"}),
    ("application/vnd.oci.image.layer.v1.tar+gzip", b"x", {TITLE: "docs", "io.deis.oras.content.unpack": "true"}),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with oci_registry(tmp_path_factory.mktemp("oci") / "registry") as registry:
        registry.push("team/tiny", "v1", ORAS)
        yield registry


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCI_USERNAME", "OCI_PASSWORD", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BALLAST_MODEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = dataclasses.replace(Hub.of_environment("oci"), sleep=lambda _: None)
    yield hub
    hub.client.close()


def gguf(found: Found) -> bytes:
    return (found.store.snapshot(found.commit) / found.choice.files[0].path).read_bytes()


def pulled(name: str) -> Found:
    hub = Hub.of_environment("oci")
    with hub.client:
        return pull(read_name(name), hub, None, io.StringIO())


def test_an_artifact_of_oras_is_pulled_listed_and_removed(
    registry: Registry, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    name = read_name(f"oci://{registry.host}/team/tiny:v1")
    found = pull(name, hub, None, io.StringIO())
    assert gguf(found) == WEIGHTS
    assert {path.name for path in found.store.snapshot(found.commit).iterdir()} == {"tiny-Q8_0.gguf", "config.json"}
    assert pull(name, hub, None, io.StringIO()).missing == ()
    assert gguf(find(name, dataclasses.replace(hub, is_offline=True), io.StringIO())) == WEIGHTS
    by_digest = f"oci://{registry.host}/team/tiny@sha256:{found.commit}:Q8_0"
    assert pulled(by_digest).missing == ()

    assert cli.main(["models"]) == 0
    assert capsys.readouterr().out == f"{by_digest}  5.9 MiB\n"
    assert cli.main(["models", "--remove", f"oci://{registry.host}/team/tiny"]) == 0
    assert not found.store.path.exists()


def test_a_moved_tag_is_followed_and_the_old_digest_keeps_its_files(registry: Registry) -> None:
    old = registry.push("team/moving", "latest", [(OCTETS, WEIGHTS, {TITLE: "tiny-Q8_0.gguf"})])
    assert gguf(pulled(f"oci://{registry.host}/team/moving")) == WEIGHTS
    registry.push("team/moving", "latest", [(OCTETS, WEIGHTS[::-1], {TITLE: "tiny-Q8_0.gguf"})])
    assert gguf(pulled(f"oci://{registry.host}/team/moving:latest")) == WEIGHTS[::-1]
    assert gguf(pulled(f"oci://{registry.host}/team/moving@{old}")) == WEIGHTS


DOCKER = "application/vnd.docker.ai.gguf.v3"


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ([(DOCKER, b"a", {}), ("application/vnd.docker.ai.license", b"l", {})], ["model.gguf"]),
        ([(DOCKER, b"a", {}), (DOCKER, b"b", {})], ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]),
        ([(DOCKER, b"a", {"org.cncf.model.filepath": "x-Q4_0.gguf"})], ["x-Q4_0.gguf"]),
        (
            [
                ("application/vnd.cncf.model.weight.v1.raw", b"a", {"org.cncf.model.filepath": "w/x-Q8_0.gguf"}),
                ("application/vnd.cncf.model.weight.v1.tar", b"t", {"org.cncf.model.filepath": "w/y-Q4_0.gguf"}),
            ],
            ["w/x-Q8_0.gguf"],
        ),
        ([(DOCKER, b"a", {}), ("application/vnd.docker.ai.mmproj", b"m", {TITLE: "mmproj.gguf"})], ["model.gguf"]),
    ],
    ids=["docker", "docker-shards", "docker-title", "modelpack", "mmproj"],
)
def test_the_formats_of_other_tools_are_read(registry: Registry, layers: Any, names: list[str]) -> None:
    repo = f"formats/{names[0].rpartition('/')[2].lower().replace('_', '-')[:12]}{len(layers)}".replace("-.", "-x")
    registry.push(repo, "v1", layers)
    found = pulled(f"oci://{registry.host}/{repo}:v1")
    assert [file.path for file in found.choice.files] == names
    assert gguf(found) == b"a"


def test_the_built_in_model_is_planned_from_its_header(registry: Registry, hub: Hub) -> None:
    files = {"tiny-Q8_0.gguf": BUILT_IN.gguf.read_bytes()}
    files |= {file.name: file.read_bytes() for file in BUILT_IN.config_dir.iterdir()}
    registry.push("built/in", "v1", [(OCTETS, body, {TITLE: name}) for name, body in files.items()])
    out = io.StringIO()
    pull(read_name(f"oci://{registry.host}/built/in:v1"), hub, serve_config(["--device", "cpu"]), out)
    assert "It fits." in out.getvalue()


def test_an_index_leads_to_its_one_model(registry: Registry) -> None:
    model = registry.push("team/index", "amd64", ORAS[:1])
    other = registry.push("team/index", "arm64", [(OCTETS, b"arm", {TITLE: "tiny-Q8_0.gguf"})])
    note = registry.push("team/index", "note", [(OCTETS, b"{}", {TITLE: "attestation.json"})])

    def listed(digest: str, architecture: str) -> dict[str, Any]:
        platform = {"os": "linux", "architecture": architecture}
        body = registry.folder / f"docker/registry/v2/blobs/sha256/{digest[7:9]}/{digest[7:]}/data"
        return {"mediaType": MANIFEST, "digest": digest, "size": body.stat().st_size, "platform": platform}

    several = [listed(other, "arm64"), listed(model, "amd64"), listed(note, "unknown")]
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": several}
    registry.push_manifest("team/index", "v1", index)
    assert gguf(pulled(f"oci://{registry.host}/team/index:v1")) == WEIGHTS
    registry.push_manifest("team/index", "v2", {**index, "manifests": [listed(other, "amd64"), listed(model, "amd64")]})
    with pytest.raises(NotFoundError, match=f"(?s)index of 2 manifests; select one:.*@{model}"):
        pulled(f"oci://{registry.host}/team/index:v2")


def test_an_interrupted_pull_resumes_and_wrong_bytes_are_rejected(registry: Registry, hub: Hub, tmp_path: Path) -> None:
    body = WEIGHTS + b"resumed"
    registry.push("team/resumed", "v1", [(OCTETS, body, {TITLE: "tiny-Q8_0.gguf"})])
    name = read_name(f"oci://{registry.host}/team/resumed:v1")
    found = find(name, hub, io.StringIO())
    [file] = found.choice.files
    blob = found.store.blob(file)
    blob.parent.mkdir(parents=True)
    blob.with_name(f"{blob.name}.incomplete").write_bytes(body[: 3 << 20])
    out = io.StringIO()
    assert gguf(pull(name, hub, None, out)) == body

    blob.unlink()
    kept = registry.blob_file(body)
    kept.write_bytes(body[::-1])
    with pytest.raises(WrongBytesError, match="checksum"):
        pull(name, hub, None, out)
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


def test_a_broken_connection_is_resumed_by_ranges(registry: Registry, hub: Hub) -> None:
    with cut_proxy(registry.host, 2 << 20) as proxy:
        name = read_name(f"oci://{proxy.host}/team/tiny:v1")
        assert gguf(pull(name, hub, None, io.StringIO())) == WEIGHTS
        assert len(WEIGHTS) < proxy.num_bytes < len(WEIGHTS) + (1 << 20)


@contextmanager
def answering(status: int, headers: dict[str, str]) -> Iterator[tuple[str, list[str | None]]]:
    """A server that always returns this response, and the credentials that it has received."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_storage_behind_a_registry_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCI_USERNAME", USER)
    monkeypatch.setenv("OCI_PASSWORD", PASSWORD)
    with answering(200, {}) as (thief, taken):
        challenge = f'Bearer realm="http://{thief}/token",service="x"'
        with (
            answering(401, {"WWW-Authenticate": challenge}) as (storage, seen),
            answering(307, {"Location": f"http://{storage}/blob"}) as (host, _),
            pytest.raises(TokenError),
        ):
            pulled(f"oci://{host}/team/tiny:v1")
        assert seen == [None]
    assert taken == []


@pytest.mark.parametrize(
    ("challenge", "kind", "message"),
    [
        ("Negotiate", TokenError, "OCI_USERNAME"),
        ("Bearer", TokenError, "OCI_USERNAME"),
        ('Bearer realm="/token"', ModelError, "the hub's answer is invalid"),
        ('Bearer realm="file:///etc/passwd"', ModelError, "the hub's answer is invalid"),
    ],
)
def test_challenges_that_no_client_can_answer_are_refused(challenge: str, kind: type[Exception], message: str) -> None:
    with answering(401, {"WWW-Authenticate": challenge}) as (host, _), pytest.raises(kind, match=message):
        pulled(f"oci://{host}/team/tiny:v1")


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Registry]]:
    folder = tmp_path_factory.mktemp("private")
    with oci_registry(folder / "basic", "basic") as basic, oci_registry(folder / "token", "token") as token:
        for registry in (basic, token):
            registry.push("team/tiny", "v1", ORAS)
        yield {"basic": basic, "token": token}


@pytest.mark.parametrize("auth", ["basic", "token"])
def test_credentials_are_read_from_dockers_configuration_or_variables(
    private: dict[str, Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str
) -> None:
    registry = private[auth]
    name = f"oci://{registry.host}/team/tiny:v1"
    with pytest.raises(TokenError, match="docker login"):
        pulled(name)
    monkeypatch.setenv("OCI_USERNAME", USER)
    monkeypatch.setenv("OCI_PASSWORD", "wrong")
    with pytest.raises(TokenError, match="the credentials allow to pull it"):
        pulled(name)
    monkeypatch.setenv("OCI_PASSWORD", PASSWORD)
    assert gguf(pulled(name)) == WEIGHTS
    monkeypatch.delenv("OCI_PASSWORD")
    cli.main(["models", "--remove_all"])
    (tmp_path / "config.json").write_text(docker_config(f"https://{registry.host}"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert gguf(pulled(name)) == WEIGHTS


def test_a_token_is_requested_once_and_only_for_this_repository(
    private: dict[str, Registry], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry = private["token"]
    registry.tokens.requested.clear()
    entry = {"identitytoken": registry.tokens.identity_token, "auth": ""}
    (tmp_path / "config.json").write_text(docker_config(registry.host, **entry))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert gguf(pulled(f"oci://{registry.host}/team/tiny:v1")) == WEIGHTS
    assert registry.tokens.requested == ["repository:team/tiny:pull"]


def test_a_public_repository_of_a_registry_with_tokens_needs_no_credentials(private: dict[str, Registry]) -> None:
    registry = private["token"]
    registry.tokens.anonymous_may = True
    assert gguf(pulled(f"oci://{registry.host}/team/tiny:v1")) == WEIGHTS


@pytest.mark.parametrize("name", ["team/nothing:v1", "team/tiny:v9", f"team/tiny@sha256:{'0' * 64}"])
def test_missing_objects_are_reported_by_name(registry: Registry, name: str) -> None:
    with pytest.raises(NotFoundError, match="no such repository, tag or digest"):
        pulled(f"oci://{registry.host}/{name}")


def test_credentials_of_the_longest_matching_entry_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auths = {
        "https://index.docker.io/v1/": {"username": "hub", "password": "1"},
        "ghcr.io": {"username": "all", "password": "2"},
        "ghcr.io/team": {"username": "team", "password": "3"},
        "keeper.example": {},
    }
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths, "credHelpers": {"x": "y"}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert credentials_for("registry-1.docker.io/ai/tiny") == Credentials("hub", "1")
    assert credentials_for("ghcr.io/other/tiny") == Credentials("all", "2")
    assert credentials_for("ghcr.io/team/tiny") == Credentials("team", "3")
    assert credentials_for("ghcr.io/teammate/tiny") == Credentials("all", "2")
    for other in ("ghcr.io.evil/team", "keeper.example/a", "quay.io/a"):
        assert credentials_for(other) is None
    assert "3" not in repr(credentials_for("ghcr.io/team/tiny"))
    for broken in ("{", '{"auths": {"ghcr.io": {"auth": "%%"}}}'):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(ConfigError, match="DOCKER_CONFIG"):
            credentials_for("ghcr.io/a")


def manifest(*layers: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": list(layers), **more}).encode()


def layer(title: str = "x-Q8_0.gguf", **more: Any) -> dict[str, Any]:
    found = {"mediaType": OCTETS, "digest": f"sha256:{'a' * 64}", "size": 5, "annotations": {TITLE: title}}
    return {**found, **more}


@pytest.mark.parametrize(
    "body",
    [
        manifest(layer("../x-Q8_0.gguf")),
        manifest(layer("/etc/x-Q8_0.gguf")),
        manifest(layer("a//x-Q8_0.gguf")),
        manifest(layer("x\x1b[2J.gguf")),
        manifest(layer("..\\x.gguf")),
        manifest(layer("")),
        manifest(layer(size=-1)),
        manifest(layer(size=1 << 60)),
        manifest(layer(size="5")),
        manifest(layer(digest="sha512:" + "a" * 128)),
        manifest(layer(digest="sha256:../../x")),
        manifest(layer(), layer(digest=f"sha256:{'b' * 64}")),
        manifest(*[layer()] * 5000),
        manifest(schemaVersion=1),
        manifest(layers="x"),
        b"[]",
        b"<html>",
        b"",
    ],
    ids=lambda body: body.decode()[60:140],
)
def test_hostile_manifests_are_refused(body: bytes) -> None:
    with pytest.raises((ModelError, DocumentError)) as refused:
        RegistryApi().listing(HubName("localhost/p", revision="v1", site="oci"), lambda path, headers: body)
    assert str(refused.value).isprintable()


def test_a_requested_digest_must_be_that_of_the_manifest() -> None:
    name = HubName("localhost/p", revision=f"sha256:{'0' * 64}", site="oci")
    with pytest.raises(ModelError, match="a manifest of another digest"):
        RegistryApi().listing(name, lambda path, headers: manifest(layer()))


def test_names_are_read_as_they_are_meant() -> None:
    digest = f"sha256:{'0' * 64}"
    assert read_name("oci://ghcr.io/a/b") == HubName("ghcr.io/a/b", None, "latest", "oci")
    assert read_name("oci://localhost:5000/b:v1:Q8_0") == HubName("localhost:5000/b", "Q8_0", "v1", "oci")
    assert read_name(f"oci://ghcr.io/a/b:v1@{digest}") == HubName("ghcr.io/a/b", None, digest, "oci")
    for name in ("oci://ghcr.io/a/b:latest", f"oci://ghcr.io/a/b@{digest}"):
        assert read_name(name).written == name


@pytest.mark.parametrize(
    "text",
    [
        *(
            "oci://",
            "oci://ghcr.io",
            "oci://ghcr.io/A",
            "oci://ghcr.io/../a",
            "oci://ghcr.io/a:",
            "oci://u:p@ghcr.io/a",
        ),
        *("oci://ghcr.io/a@sha256:12", "oci://ghcr.io//a", "oci://ghcr.io/a:v1:../x", "oci://ghcr.io:99999999/a"),
    ],
)
def test_an_invalid_name_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="oci://registry/repo:tag"):
        read_name(text)
