"""Models are pulled from an S3-compatible store completely and verified, with and without credentials."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from ballast import cli
from ballast.cli import serve_config
from ballast.documents.small_file import DocumentError
from ballast.errors import BallastError, ConfigError, ModelError
from ballast.hub.checksum import Checksum
from ballast.hub.errors import NotFoundError, TokenError, WrongBytesError
from ballast.hub.naming import HubFile, HubName, read_name, repo_folder, repo_of_folder
from ballast.hub.pull import Found, find, pull
from ballast.hub.remote import Hub, all_caches, cache_of
from ballast.hub.s3 import S3Store
from ballast.tiny import BUILT_IN
from devkit.servers.command import ballast
from devkit.stores.cut_proxy import cut_proxy
from devkit.stores.s3_server import S3Server, s3_server

WEIGHTS = bytes(range(256)) * 24_000
FOLDER = "team a/tiny+v1"
NAME = read_name(f"s3://models/{FOLDER}:Q8_0")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "store") as server:
        files = {
            "tiny-Q8_0.gguf": WEIGHTS,
            "tiny-Q4_K_M.gguf": b"other",
            "config.json": b"{}",
            "model.py": b"evil",
            "sub/": b"",
        }
        server.fill("models", {f"{FOLDER}/{name}": body for name, body in files.items()})
        yield server


@pytest.fixture(autouse=True)
def environment(store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**store.environment, "BALLAST_MODEL_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = dataclasses.replace(Hub.of_environment("s3"), sleep=lambda _: None)
    yield hub
    hub.client.close()


def gguf(found: Found) -> bytes:
    return (found.store.snapshot(found.commit) / found.choice.files[0].path).read_bytes()


def pulled(name: str) -> Found:
    hub = Hub.of_environment("s3")
    with hub.client:
        return pull(read_name(name), hub, None, io.StringIO())


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_model_is_pulled_listed_and_removed(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    pulled = pull(NAME, hub, None, io.StringIO())
    assert gguf(pulled) == WEIGHTS
    names = {path.name for path in pulled.store.snapshot(pulled.commit).iterdir()}
    assert names == {"tiny-Q8_0.gguf", "config.json"}
    assert pull(NAME, hub, None, io.StringIO()).missing == ()
    offline = dataclasses.replace(hub, is_offline=True, endpoint="http://127.0.0.1:9")
    assert gguf(find(NAME, offline, io.StringIO())) == WEIGHTS

    assert cli.main(["models"]) == 0
    assert capsys.readouterr().out == f"s3://models/{FOLDER}:Q8_0@{pulled.commit}  5.9 MiB\n"
    assert cli.main(["models", "--remove", f"s3://models/{FOLDER}"]) == 0
    assert "removed" in capsys.readouterr().out
    assert not pulled.store.path.exists()


def test_a_model_is_planned_from_its_header_and_pulled_by_the_name_of_its_file(store: S3Server, hub: Hub) -> None:
    files = {"tiny.gguf": BUILT_IN.gguf.read_bytes()}
    files |= {file.name: file.read_bytes() for file in BUILT_IN.config_dir.iterdir()}
    store.fill("built-in", {f"a/{name}": body for name, body in files.items()})
    out = io.StringIO()
    pulled = pull(read_name("s3://built-in/a/tiny.gguf"), hub, serve_config(["--device", "cpu"]), out)
    assert gguf(pulled) == files["tiny.gguf"]
    assert "It fits." in out.getvalue()
    assert pull(read_name("s3://built-in/a"), hub, None, out).missing == ()


def test_the_command_lists_the_pulled_files(store: S3Server, tmp_path: Path) -> None:
    report = tmp_path / "report"
    words = ["pull", f"s3://models/{FOLDER}:Q8_0", "--skip_plan", "--report", str(report)]
    done = ballast(words, {**os.environ, **store.environment})
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == WEIGHTS
    assert json.loads(report.read_text())["reason"] == "Pulled"
    assert "secret" not in done.stderr + report.read_text()


def test_an_interrupted_pull_resumes_from_the_received_bytes(hub: Hub) -> None:
    found = find(NAME, hub, io.StringIO())
    [file] = found.choice.files
    part = found.store.blob(file).with_name(f"{file.content}.incomplete")
    part.parent.mkdir(parents=True)
    part.write_bytes(WEIGHTS[: 2 << 20])
    out = io.StringIO()
    assert gguf(pull(NAME, hub, None, out)) == WEIGHTS
    part.write_bytes(b"x" * (2 << 20))
    found.store.blob(file).unlink()
    with pytest.raises(WrongBytesError, match="checksum"):
        pull(NAME, hub, None, io.StringIO())
    assert not part.exists()


def test_a_broken_connection_is_resumed_by_ranges(store: S3Server, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    store.fill("broken", {"tiny-Q8_0.gguf": WEIGHTS})
    store.upload_in_parts("broken", "parts/tiny-Q8_0.gguf", WEIGHTS)
    for name in ("s3://broken/tiny-Q8_0.gguf", "s3://broken/parts"):
        with cut_proxy(store.endpoint.removeprefix("http://"), 2 << 20) as proxy:
            cut = dataclasses.replace(hub, endpoint=f"http://{proxy.host}")
            assert gguf(pull(read_name(name), cut, None, io.StringIO())) == WEIGHTS
            assert len(WEIGHTS) < proxy.num_bytes < len(WEIGHTS) + (1 << 20)


@pytest.mark.parametrize("fields", [{}, {"ChecksumAlgorithm": "SHA256"}], ids=["md5", "sha256"])
def test_changed_bytes_are_refused_and_not_kept(
    store: S3Server, hub: Hub, tmp_path: Path, fields: dict[str, str]
) -> None:
    bucket = f"changed-{len(fields)}"
    store.fill(bucket, {"tiny-Q8_0.gguf": WEIGHTS}, **fields)
    (store.folder / bucket / "tiny-Q8_0.gguf").write_bytes(WEIGHTS[::-1])
    with pytest.raises(WrongBytesError, match="checksum"):
        pull(read_name(f"s3://{bucket}"), hub, None, io.StringIO())
    assert files_in(tmp_path / "cache") == []


def test_a_multipart_object_has_no_checksum_and_this_is_reported(store: S3Server, hub: Hub) -> None:
    store.fill("parts", {})
    store.upload_in_parts("parts", "tiny-Q8_0.gguf", WEIGHTS)
    out = io.StringIO()
    first = pull(read_name("s3://parts"), hub, None, out)
    assert gguf(first) == WEIGHTS
    assert "tiny-Q8_0.gguf: the store does not have its checksum" in out.getvalue()
    store.upload_in_parts("parts", "tiny-Q8_0.gguf", WEIGHTS[::-1])
    second = pull(read_name("s3://parts"), hub, None, out)
    assert second.commit != first.commit
    assert gguf(second) == WEIGHTS[::-1]


def test_an_object_that_changes_while_it_is_pulled_is_not_mixed(store: S3Server, hub: Hub, tmp_path: Path) -> None:
    store.fill("moving", {"tiny-Q8_0.gguf": WEIGHTS})
    name = read_name("s3://moving")
    found = find(name, hub, io.StringIO())
    store.client.put_object(Bucket="moving", Key="tiny-Q8_0.gguf", Body=WEIGHTS[::-1])
    [file] = found.choice.files
    with pytest.raises(WrongBytesError, match="has changed since it was listed; pull again"):
        hub.head(name.repo, "", file, 1000)
    assert gguf(pull(name, hub, None, io.StringIO())) == WEIGHTS[::-1]


def test_listings_of_several_pages_are_read_completely(store: S3Server, hub: Hub) -> None:
    store.fill("pages", {})
    folder = store.folder / "pages" / "many"
    folder.mkdir()
    for number in range(2100):
        (folder / f"{number:05}.txt").touch()
    store.client.put_object(Bucket="pages", Key="many/tiny-Q8_0.gguf", Body=b"weights")
    assert gguf(pull(read_name("s3://pages/many"), hub, None, io.StringIO())) == b"weights"
    assert len(hub.listing(read_name("s3://pages/many")).files) == 2101


def test_a_public_bucket_needs_no_credentials(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store.fill("public", {"tiny-Q8_0.gguf": WEIGHTS})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(TokenError, match="403 AccessDenied: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        pulled("s3://public")
    store.open_to_all("public")
    assert gguf(pulled("s3://public")) == WEIGHTS


@pytest.mark.parametrize(
    ("variables", "name", "kind", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "s3://models", TokenError, "AWS_SECRET_ACCESS_KEY does not belong to"),
        ({"AWS_ACCESS_KEY_ID": "unknown"}, "s3://models", TokenError, "check that AWS_ACCESS_KEY_ID may list"),
        ({"AWS_REGION": "us-west-2"}, "s3://models", BallastError, "AWS_REGION"),
        ({"AWS_SECRET_ACCESS_KEY": ""}, "s3://models", TokenError, "no credentials were found"),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "s3://models", ConfigError, "AWS_ENDPOINT_URL"),
        ({}, "s3://no-such-bucket", NotFoundError, "no such bucket"),
        ({}, "s3://models/nothing", NotFoundError, "no complete GGUF model"),
        ({}, f"s3://models/{FOLDER}", NotFoundError, r"\n  s3://models/team a/tiny\+v1:Q4_K_M  5 B"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_are_reported_with_their_cause(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str, kind: type[BallastError], message: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(kind, match=message):
        pulled(name)


def test_a_rejected_cloud_identity_is_reported(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "token").write_text("no token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/models")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-test-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", store.endpoint)
    with pytest.raises(TokenError, match=r"the request could not be signed: .*AssumeRoleWithWebIdentity"):
        pulled("s3://models")


def test_the_region_that_a_store_names_is_in_the_message() -> None:
    answer = httpx2.Response(301, headers={"x-amz-bucket-region": "eu-west-1"}, stream=httpx2.ByteStream(b""))
    assert "the bucket is in eu-west-1" in str(S3Store().refusal("models", answer))


@pytest.mark.parametrize(
    ("headers", "checksum"),
    [
        ({}, Checksum("md5", "0" * 32)),
        ({"X-Amz-Server-Side-Encryption": "AES256"}, Checksum("md5", "0" * 32)),
        ({"X-Amz-Server-Side-Encryption": "aws:kms"}, None),
        ({"X-Amz-Server-Side-Encryption-Customer-Algorithm": "AES256"}, None),
        ({"X-Amz-Checksum-Sha256": base64.b64encode(bytes(32)).decode()}, Checksum("sha256", "0" * 64)),
        ({"X-Amz-Checksum-Sha256": f"{base64.b64encode(bytes(32)).decode()}-3"}, Checksum("md5", "0" * 32)),
        (
            {"X-Amz-Checksum-Sha256": base64.b64encode(bytes(32)).decode(), "X-Amz-Checksum-Type": "COMPOSITE"},
            Checksum("md5", "0" * 32),
        ),
    ],
    ids=str,
)
def test_only_a_checksum_of_the_whole_object_is_trusted(headers: dict[str, str], checksum: Checksum | None) -> None:
    file = HubFile("x.gguf", 5, "0" * 32, f'"{"0" * 32}"')
    assert S3Store().checksum("models", file, lambda path, requested: headers) == checksum


def test_stores_with_buckets_of_one_name_are_kept_apart(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pull(NAME, hub, None, io.StringIO())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://other.example")
    other = dataclasses.replace(hub, cache=cache_of("s3"), is_offline=True)
    with pytest.raises(ConfigError, match="is not downloaded"):
        find(NAME, other, io.StringIO())
    assert hub.cache in all_caches()
    assert cli.main(["models", "--remove_all"]) == 0
    assert "5.9 MiB removed" in capsys.readouterr().out
    assert files_in(tmp_path / "cache") == []


def page(key: str, more: str = "", size: str = "5", etag: str = '"0123456789abcdef0123456789abcdef"') -> bytes:
    found = f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{etag}</ETag></Contents>"
    return f"<ListBucketResult>{more}<EncodingType>url</EncodingType>{found}</ListBucketResult>".encode()


@pytest.mark.parametrize(
    "body",
    [
        page("p/../x-Q8_0.gguf"),
        page("p//x-Q8_0.gguf"),
        page("p/a/./x-Q8_0.gguf"),
        page("/etc/x-Q8_0.gguf"),
        page("other/x-Q8_0.gguf"),
        page("p/x%1B%5B2J-Q8_0.gguf"),
        page("p/x%0A-Q8_0.gguf"),
        page("p/..%5Cx-Q8_0.gguf"),
        page("p/%2e%2e/x-Q8_0.gguf"),
        page("p/x.gguf", size="-5"),
        page("p/x.gguf", size="9" * 30),
        page("p/x.gguf", size=str(1 << 60)),
        page("p/x.gguf", size=""),
        page("p/x.gguf", etag=""),
        page("p/x.gguf", etag="x" * 300),
        page("p/x.gguf", more="<IsTruncated>true</IsTruncated>"),
        page("p/x.gguf", more="<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>"),
        b'<!DOCTYPE a [<!ENTITY b "c">]><ListBucketResult>&b;</ListBucketResult>',
        b"<html></html>",
        b"\xff\xfe<",
        b"",
    ],
    ids=lambda body: body.decode("latin-1")[:60],
)
def test_hostile_listings_are_refused(body: bytes) -> None:
    with pytest.raises((ModelError, DocumentError)) as refused:
        S3Store().listing(HubName("bucket/p", site="s3"), lambda path, headers: body)
    assert str(refused.value).isprintable()


def test_names_are_read_as_they_are_meant() -> None:
    assert read_name("s3://models") == HubName("models", site="s3")
    assert read_name("s3://models/a/b/") == HubName("models/a/b", site="s3")
    assert read_name("s3://models/a b:UD-Q4_K_XL") == HubName("models/a b", "UD-Q4_K_XL", site="s3")
    assert read_name("s3://models/a/b-00001-of-00002.gguf") == HubName("models/a", "b-00001-of-00002.gguf", site="s3")
    assert read_name("s3://models/a@b").repo == "models/a@b"
    for repo in ("models", "models/a--b", "models/ä/%2F b"):
        assert repo_of_folder("s3", repo_folder("s3", repo)) == repo
        assert "/" not in repo_folder("s3", repo)


@pytest.mark.parametrize(
    "text",
    [
        *("s3://", "s3:///a", "s3://Models/a", "s3://ab", "s3://models/../etc", "s3://models//a", "s3://models/a\x1b"),
        *(
            "s3://models/./a",
            "s3://models/a:../b",
            f"s3://models/{'a' * 200}",
            "s3://models/a:",
        ),
    ],
)
def test_an_invalid_name_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        read_name(text)
