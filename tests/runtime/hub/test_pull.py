"""Models are pulled from a hub completely and verified, also if the hub or the network fails."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import random
import resource
import signal
import subprocess
import sys
import time
from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir

from ballast import cli
from ballast.cli import serve_config
from ballast.config.options import Config
from ballast.errors import BallastError, ConfigError, ModelError, OutOfMemoryError
from ballast.hub.library import listed, remove, remove_all
from ballast.hub.naming import HUGGING_FACE, Choice, HubFile, HubName, choices, choose, read_name
from ballast.hub.progress import Progress
from ballast.hub.pull import Found, check_room, find, print_plan, pull
from ballast.hub.remote import Hub, UnreachableError
from ballast.weights.header import is_whole
from devkit.models.written import write_tiny_model
from devkit.servers.command import ballast
from devkit.stores.hub_server import COMMIT, HubServer, hub_server

NAME = HubName("org/tiny", "Q8_0")


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_model(tmp_path_factory.mktemp("weights"), arch="v3", quant="q8_0").gguf.read_bytes()


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def served(weights: bytes, tmp_path: Path, waits: list[float]) -> Iterator[tuple[HubServer, Hub]]:
    files = {"tiny-Q8_0.gguf": weights, "tiny-Q4_K_M.gguf": b"other", "config.json": b"{}", "model.py": b"evil"}
    with hub_server(files) as (server, endpoint):
        hub = Hub(endpoint, tmp_path / "cache", "secret", sleep=waits.append)
        yield server, hub
        hub.client.close()


def gguf(found: Found) -> bytes:
    return (found.store.snapshot(found.commit) / found.choice.files[0].path).read_bytes()


def files_in(cache: Path) -> list[Path]:
    """Files with content; a rejected pull leaves none."""
    return [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 0]


def environment(hub: Hub) -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(hub.cache), "HF_TOKEN": "secret"}


def test_a_pull_downloads_only_needed_files_and_the_hubs_tools_find_them(
    served: tuple[HubServer, Hub], weights: bytes
) -> None:
    server, hub = served
    server.token = "secret"
    reported = io.StringIO()
    pulled = pull(NAME, hub, serve_config(["--device", "cpu"]), reported)
    assert gguf(pulled) == weights
    assert reported.getvalue().index("needed") < reported.getvalue().index("/s"), "the plan comes before the first byte"
    assert {path for path, _ in server.ranges} == {"tiny-Q8_0.gguf", "config.json"}
    assert server.leaked == []
    [repo] = scan_cache_dir(hub.cache).repos
    [revision] = repo.revisions
    assert (repo.repo_id, revision.commit_hash, revision.refs) == ("org/tiny", COMMIT, {"main"})
    known = hf_hub_download("org/tiny", "tiny-Q8_0.gguf", cache_dir=hub.cache, local_files_only=True)
    assert Path(known).read_bytes() == weights

    requested = len(server.ranges)
    assert pull(NAME, hub, None, reported).missing == ()
    assert gguf(pull(NAME, dataclasses.replace(hub, endpoint="http://127.0.0.1:9", is_offline=True), None)) == weights
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE .* Q4_K_M is none of its models"):
        pull(HubName("org/tiny", "Q4_K_M"), dataclasses.replace(hub, is_offline=True), None)
    assert gguf(pull(NAME, dataclasses.replace(hub, endpoint="http://127.0.0.1:9"), None, reported)) == weights
    assert "the copy of an earlier download is used" in reported.getvalue()
    assert len(server.ranges) == requested


def test_files_pulled_before_a_branch_moved_are_still_found(served: tuple[HubServer, Hub], weights: bytes) -> None:
    """Another service pulls another quantisation to the same claim; the first one restarts offline."""
    server, hub = served
    pull(NAME, hub, None, io.StringIO())
    server.answer = {"sha": "f" * 40}
    server.files["tiny-Q4_K_M.gguf"] = weights + bytes(32)
    other = pull(HubName("org/tiny", "Q4_K_M"), hub, None, io.StringIO())
    assert other.commit == "f" * 40
    offline = dataclasses.replace(hub, is_offline=True)
    assert gguf(find(NAME, offline, io.StringIO())) == weights
    assert find(HubName("org/tiny", "Q4_K_M"), offline, io.StringIO()).commit == "f" * 40
    with pytest.raises(ConfigError, match="is none of its models"):
        find(HubName("org/tiny", "Q2_K"), offline, io.StringIO())


def test_models_are_listed_and_removed(served: tuple[HubServer, Hub]) -> None:
    hub = served[1]
    assert "no downloaded GGUF model" in listed({HUGGING_FACE: hub.cache})
    pulled = pull(NAME, hub, None, io.StringIO())
    assert listed({HUGGING_FACE: hub.cache}).startswith(f"org/tiny:Q8_0@{COMMIT}  13.9 MiB\n")
    for wrong in (HubName("org/other"), NAME, HubName(NAME.repo, revision=COMMIT)):
        with pytest.raises(ConfigError, match="ballast models"):
            remove(hub.cache, wrong)
    assert "org/tiny: 13.9 MiB removed" in remove(hub.cache, HubName("org/tiny"))
    assert not pulled.store.path.exists()


def test_everything_in_the_caches_is_removed_with_their_folders(served: tuple[HubServer, Hub], tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.touch()
    hub = dataclasses.replace(served[1], cache=tmp_path / "one")
    pull(NAME, hub, None, io.StringIO())
    inside = dataclasses.replace(served[1], cache=hub.cache / "ballast" / "modelscope.cn")
    pull(NAME, inside, None, io.StringIO())
    assert remove_all([hub.cache, inside.cache]) == "27.9 MiB removed\n"
    assert [*tmp_path.iterdir()] == [kept]
    assert remove_all([hub.cache, inside.cache]) == "0 B removed\n", "it can be repeated"

    pull(NAME, hub, None, io.StringIO())
    (hub.cache / "notes.txt").touch()
    (hub.cache / "models--other--linked").symlink_to(tmp_path)
    remove_all([hub.cache])
    assert sorted(path.name for path in hub.cache.iterdir()) == ["models--other--linked", "notes.txt"]
    assert kept.exists()


def test_a_plan_reads_only_headers(served: tuple[HubServer, Hub], tmp_path: Path) -> None:
    server, hub = served
    config = serve_config(["--device", "cpu"])
    there, here = io.StringIO(), io.StringIO()
    print_plan(find(NAME, hub, there), hub, config, out=there)
    assert server.requested_bytes < 2 << 20
    assert not files_in(hub.cache)
    pull(NAME, hub, None, here)
    here.truncate(0)
    here.seek(0)
    print_plan(find(NAME, hub, here), hub, config, out=here)
    assert [line for line in here.getvalue().splitlines() if "weights" in line] == [
        line for line in there.getvalue().splitlines() if "weights" in line
    ]


def test_a_header_is_complete_with_its_last_byte(weights: bytes) -> None:
    size = min(size for size in (1 << power for power in range(4, 21)) if is_whole(weights[:size]))
    end = bisect(range(size), False, key=lambda size: is_whole(weights[:size]))
    assert 1024 < end < 1 << 20
    # Its last field is the offset of the last tensor, followed by zeros up to the next multiple of 32.
    assert 0 < int.from_bytes(weights[end - 8 : end], "little") < len(weights)
    assert not any(weights[end : -(-end // 32) * 32])
    assert is_whole(b"<html>")


def test_the_choices_are_shown(served: tuple[HubServer, Hub]) -> None:
    with pytest.raises(ConfigError, match=r"has 2 models(.|\n)*org/tiny:Q4_K_M  5 B(.|\n)*org/tiny:Q8_0  "):
        pull(HubName("org/tiny"), served[1], None)
    with pytest.raises(ConfigError, match="Q2_K is none of its models"):
        pull(HubName("org/tiny", "Q2_K"), served[1], None)


def test_files_that_do_not_fit_are_not_downloaded(served: tuple[HubServer, Hub]) -> None:
    server, hub = served
    config = serve_config(["--device", "cpu", "--max_new_tokens", "1000000", "--cache_lens", "1000000000"])
    with pytest.raises(OutOfMemoryError):
        pull(NAME, hub, config, io.StringIO())
    assert not files_in(hub.cache)
    assert [begin for _, begin in server.ranges] == [0, 0], "config.json and a header"


def test_a_broken_transfer_resumes(served: tuple[HubServer, Hub], weights: bytes, waits: list[float]) -> None:
    server, hub = served
    server.break_after = len(weights) // 3 + 1
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights
    assert waits == [1, 1]


def test_without_ranges_a_transfer_begins_again(served: tuple[HubServer, Hub], weights: bytes) -> None:
    server, hub = served
    server.break_after, server.takes_ranges = len(weights) // 3 + 1, False

    def answer_correctly(_: float) -> None:
        server.break_after = None

    assert gguf(pull(NAME, dataclasses.replace(hub, sleep=answer_correctly), None, io.StringIO())) == weights


def test_an_interrupted_transfer_without_range_support_fails(served: tuple[HubServer, Hub], weights: bytes) -> None:
    server, hub = served
    server.break_after, server.takes_ranges = len(weights) // 3 + 1, False
    with pytest.raises(UnreachableError, match="pull again later"):
        pull(NAME, hub, None, io.StringIO())
    server.break_after = None
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights


@pytest.mark.parametrize(
    ("takes_ranges", "change", "problem"),
    [
        (True, lambda body: body[:-1] + bytes([body[-1] ^ 1]), "checksum"),
        (False, lambda body: body + b"more", "more than"),
        (True, lambda body: body[:-1], "cannot be downloaded from"),
    ],
    ids=["other bytes", "too many", "too few"],
)
def test_a_download_with_wrong_bytes_is_discarded(
    served: tuple[HubServer, Hub], weights: bytes, takes_ranges: bool, change: Any, problem: str
) -> None:
    server, hub = served
    server.change, server.takes_ranges = lambda body: change(body) if len(body) > 5 else body, takes_ranges
    with pytest.raises(ModelError, match=problem):
        pull(NAME, hub, None, io.StringIO())
    assert not list(hub.cache.rglob("*.gguf"))
    server.change = lambda body: body
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights


def sibling(**fields: Any) -> dict[str, Any]:
    content = {"sha256": "a" * 64, "size": 5, "pointerSize": 1}
    return {"siblings": [{"rfilename": "x-Q8_0.gguf", "size": 5, "blobId": "b" * 40, "lfs": content} | fields]}


HOSTILE: dict[str, dict[str, Any] | bytes] = {
    "above": sibling(rfilename="../x-Q8_0.gguf"),
    "absolute": sibling(rfilename="/etc/x-Q8_0.gguf"),
    "backslash": sibling(rfilename="..\\x-Q8_0.gguf"),
    "terminal": sibling(rfilename="\x1b[2Jx-Q8_0.gguf"),
    "huge": sibling(size=1 << 60),
    "negative": sibling(size=-5),
    "no size": sibling(size=None),
    "checksum is a path": sibling(lfs={"sha256": "../../x", "size": 5, "pointerSize": 1}),
    "commit is a path": {"sha": "../../x"},
    "no commit": {"sha": None},
    "size is text": sibling(size="x"),
    "siblings are text": {"siblings": "x"},
    "a page": b"<!doctype html><title>Sign in</title>",
    "nested": b"[" * 100_000,
    "many files": b'{"sha": "' + COMMIT.encode() + b'", "siblings": [' + b'{"rfilename": "x"},' * 60_000 + b"{}]}",
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_listings_are_refused(served: tuple[HubServer, Hub], answer: dict[str, Any] | bytes) -> None:
    server, hub = served
    if isinstance(answer, bytes):
        server.raw = answer
    else:
        server.answer = answer
    with pytest.raises(BallastError) as refused:
        pull(NAME, hub, None, io.StringIO())
    assert "\x1b" not in str(refused.value)
    assert not list(hub.cache.parent.rglob("x*"))
    assert not hub.cache.exists()


def test_a_listing_without_end_is_refused(served: tuple[HubServer, Hub]) -> None:
    server, hub = served
    server.raw = b" " * (9 << 20)
    with pytest.raises(ModelError, match="is too long"):
        pull(NAME, hub, None)


@pytest.mark.parametrize("to", ["{hub}/org/tiny/resolve/{commit}/tiny-Q8_0.gguf", "file:///etc/passwd", "http://[x"])
def test_endless_redirects_fail(served: tuple[HubServer, Hub], to: str) -> None:
    server, hub = served
    server.redirect = to.format(hub=hub.endpoint, commit=COMMIT)
    with pytest.raises(ModelError, match=r"hub|cannot be downloaded from"):
        pull(NAME, hub, None, io.StringIO())
    assert not files_in(hub.cache)


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (401, {}, "HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "consent"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "no such revision"),
        (404, {}, "check the name"),
        (418, {}, "answers with the unexpected status 418"),
        (429, {"Retry-After": "99999999"}, "status 429"),
        (503, {}, "status 503"),
    ],
)
def test_http_errors_are_reported_with_a_fix(
    served: tuple[HubServer, Hub], waits: list[float], status: int, headers: dict[str, str], problem: str
) -> None:
    server, hub = served
    server.statuses, server.headers = [status] * 9, headers
    with pytest.raises(BallastError, match=problem):
        pull(NAME, hub, None, io.StringIO())
    assert sum(waits) < 60


def test_a_busy_hub_is_retried_after_its_retry_time(
    served: tuple[HubServer, Hub], weights: bytes, waits: list[float]
) -> None:
    server, hub = served
    server.statuses, server.headers = [429, 503], {"Retry-After": "7"}
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights
    assert waits == [7, 7]


def test_a_rejected_token_is_reported_with_its_variable(served: tuple[HubServer, Hub]) -> None:
    served[0].token = "another"
    with pytest.raises(ConfigError, match="HF_TOKEN is valid"):
        pull(NAME, served[1], None)
    with pytest.raises(ConfigError, match="set HF_TOKEN if it is private"):
        pull(NAME, dataclasses.replace(served[1], token=None), None)


def test_a_full_disk_is_reported_before_and_during_a_pull(served: tuple[HubServer, Hub], weights: bytes) -> None:
    with pytest.raises(OutOfMemoryError, match="HF_HUB_CACHE"):
        check_room(served[1], 2 << 30, 1 << 30)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OutOfMemoryError, match="disk is full"):
            pull(NAME, served[1], None, io.StringIO())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert gguf(pull(NAME, served[1], None, io.StringIO())) == weights


def test_two_pulls_of_one_model_do_not_mix(served: tuple[HubServer, Hub]) -> None:
    server, hub = served

    refused: list[BallastError] = []

    def meanwhile(body: bytes) -> bytes:
        server.change = lambda same: same
        try:
            pull(HubName("org/tiny", "Q4_K_M"), hub, None, io.StringIO())
        except BallastError as error:
            refused.append(error)
        return body

    server.change = meanwhile
    pull(NAME, hub, None, io.StringIO())
    assert "another process is downloading it" in str(refused[0])


PULL_IN_A_CHILD = """
import os, sys
from pathlib import Path
from ballast.hub.naming import HubName
from ballast.hub.pull import pull
from ballast.hub.remote import Hub
import pydantic, httpx2
endpoint, cache = sys.argv[1:]
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        pull(HubName("org/tiny", "Q8_0"), Hub(endpoint, Path(cache)), None)
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def test_a_pull_killed_anywhere_is_resumed_by_the_next_one(served: tuple[HubServer, Hub], weights: bytes) -> None:
    server, hub = served
    command = [sys.executable, "-c", PULL_IN_A_CHILD, hub.endpoint, str(hub.cache)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for at in sorted(random.Random(1).sample(range(len(weights)), 10)):
            server.hold_at = at
            parent.stdin.write("\n")
            parent.stdin.flush()
            child = int(parent.stdout.readline())
            assert server.held.wait(60)
            while at > 1 << 20 and not any(part.stat().st_size for part in hub.cache.rglob("*.incomplete")):
                time.sleep(0.001)  # the last sent bytes may or may not be written
            os.kill(child, signal.SIGKILL)
            assert int(parent.stdout.readline()) == signal.SIGKILL
            server.let_go()
        server.hold_at = None
        parent.stdin.close()
    begins = [begin for name, begin in server.ranges if name.endswith(".gguf")]
    assert max(begins) > 0, "the pull resumed where the previous one ended"
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights


def test_the_command_prints_where_the_model_is(served: tuple[HubServer, Hub], weights: bytes) -> None:
    hub = served[1]
    done = ballast(["pull", "org/tiny:Q8_0", "--skip_plan"], environment(hub))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == weights
    assert done.stderr.endswith("/s\n"), "the last line of the log reports the speed"


@pytest.mark.parametrize(
    "name",
    ["best of both.gguf", "a of b of 3.gguf", "x of 2-00001-of-00001.gguf", "sub dir/My model (v1).gguf", "a@b.gguf"],
)
def test_files_with_spaces_and_any_words_in_their_names_are_pulled(
    served: tuple[HubServer, Hub], weights: bytes, name: str
) -> None:
    server, hub = served
    server.files[name] = weights + bytes(32)
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights
    pulled = pull(read_name(f"org/tiny:{name}@main"), hub, None, io.StringIO())
    assert [file.path for file in pulled.choice.files] == [name]
    assert gguf(pulled) == weights + bytes(32)


def refuse_links(_: Path, __: str) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_file_system_without_symbolic_links_holds_the_files_themselves(
    served: tuple[HubServer, Hub], weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, hub = served
    server.files["generation_config.json"] = server.files["config.json"]  # two names for the same bytes
    monkeypatch.setattr(Path, "symlink_to", refuse_links)
    pulled = pull(NAME, hub, None, io.StringIO())
    folder = pulled.store.snapshot(COMMIT)
    assert gguf(pulled) == weights
    assert (folder / "config.json").read_bytes() == (folder / "generation_config.json").read_bytes() == b"{}"
    assert not [path for path in hub.cache.rglob("*") if path.is_symlink()]
    assert len([path for path in files_in(hub.cache) if path.stat().st_size == len(weights)]) == 1

    requested = len(server.ranges)
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights
    assert gguf(pull(NAME, dataclasses.replace(hub, is_offline=True), None, io.StringIO())) == weights
    assert len(server.ranges) == requested
    assert listed({HUGGING_FACE: hub.cache}).startswith(f"org/tiny:Q8_0@{COMMIT}  13.9 MiB\n")
    assert "org/tiny: 13.9 MiB removed" in remove(hub.cache, HubName("org/tiny"))


def test_files_stored_without_symbolic_links_are_found(served: tuple[HubServer, Hub], weights: bytes) -> None:
    server, hub = served
    folder = hub.cache / "models--org--tiny" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "tiny-Q8_0.gguf").write_bytes(weights)
    (folder / "config.json").write_bytes(b"{}")
    known = hf_hub_download("org/tiny", "tiny-Q8_0.gguf", revision=COMMIT, cache_dir=hub.cache, local_files_only=True)
    assert Path(known).parent == folder
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights
    assert gguf(pull(NAME, dataclasses.replace(hub, is_offline=True), None, io.StringIO())) == weights
    assert server.ranges == []

    (folder / "tiny-Q8_0.gguf").write_bytes(weights[:-1])  # incomplete
    assert gguf(pull(NAME, hub, None, io.StringIO())) == weights
    assert [name for name, _ in server.ranges] == ["tiny-Q8_0.gguf"]


def test_a_read_only_folder_is_still_an_error(served: tuple[HubServer, Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path, __: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(ConfigError, match=r"HF_HUB_CACHE=.*cannot be written \(Read-only file system\)"):
        pull(NAME, served[1], None, io.StringIO())


def test_a_damaged_small_file_is_reported_by_its_checksum(served: tuple[HubServer, Hub]) -> None:
    server, hub = served
    server.change = lambda body: b"[!" if body == b"{}" else body
    with pytest.raises(ModelError, match=r"config\.json: its checksum differs from the hub's"):
        pull(NAME, hub, serve_config(["--device", "cpu"]), io.StringIO())
    assert not list(hub.cache.rglob("*.gguf"))


addresses = pytest.mark.parametrize(
    ("value", "found"),
    [
        (" {url} ", True),
        ("{url}/\r\n", True),
        ("http://127.0.0.1 :80", False),
        ("http://127.0.0.1\n:80", False),
        ("http://", False),
        ("http://127.0.0.1:port", False),
        ("ftp://127.0.0.1", False),
    ],
)
EXPECTED = "expected a URL without spaces that begins with https:// or http://"


@addresses
def test_white_space_around_a_hubs_address_is_ignored_and_invalid_addresses_are_rejected(
    served: tuple[HubServer, Hub], value: str, found: bool
) -> None:
    """In a separate process: huggingface_hub reads its address when it is imported."""
    hub = served[1]
    places = {"HF_HUB_CACHE": str(hub.cache), "HF_ENDPOINT": value.replace("{url}", hub.endpoint)}
    done = ballast(["pull", "org/tiny:Q8_0", "--skip_plan"], {**os.environ, **places})
    if found:
        assert (done.returncode, done.stderr.count("/s\n")) == (0, 1), done.stderr
    else:
        assert done.returncode == ConfigError.exit_code
        assert done.stderr.startswith("ballast: HF_ENDPOINT="), done.stderr
        assert EXPECTED in done.stderr


@addresses
def test_the_address_of_modelscope_is_parsed_the_same_way(
    served: tuple[HubServer, Hub], monkeypatch: pytest.MonkeyPatch, value: str, found: bool
) -> None:
    url = served[1].endpoint
    monkeypatch.setenv("MODELSCOPE_DOMAIN", value.replace("{url}", url))
    if found:
        assert Hub.of_environment("modelscope.cn").endpoint == url
    else:
        with pytest.raises(ConfigError, match=f"(?s)MODELSCOPE_DOMAIN=.*{EXPECTED}"):
            Hub.of_environment("modelscope.cn")


def test_white_space_around_a_token_is_ignored_and_a_broken_one_is_refused(
    served: tuple[HubServer, Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_DOMAIN", served[1].endpoint)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", " ms-1234\n")
    assert Hub.of_environment("modelscope.cn").token == "ms-1234"
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-12\n34")
    with pytest.raises(ConfigError, match=r"MODELSCOPE_API_TOKEN=…: has characters that are not allowed in a token"):
        Hub.of_environment("modelscope.cn")


def test_serve_and_plan_accept_files_and_names(
    served: tuple[HubServer, Hub], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], weights: bytes
) -> None:
    server, hub = served
    monkeypatch.setattr(Hub, "of_environment", staticmethod(lambda _: hub))
    assert cli.main(["plan", "org/tiny:Q8_0", "--device", "cpu"]) == 0
    planned = capsys.readouterr().out
    assert "It fits." in planned
    assert "\n  org/tiny/tiny-Q8_0.gguf\n" in planned, "the name of the source, not a deleted temporary folder"
    assert server.requested_bytes < 2 << 20

    assert cli.main(["plan", "org/tiny:Q4_K_M"]) == ModelError.exit_code
    assert "ballast: org/tiny/tiny-Q4_K_M.gguf: " in capsys.readouterr().err, "the name of the source here, too"

    configs: list[Config] = []
    monkeypatch.setattr("ballast.server.serve_command.serve", lambda config: configs.append(config) or 0)
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert cli.main(["serve", "org/tiny:Q8_0", "--device", "cpu"]) == 0
        file = configs[0].model.gguf_path
        assert file is not None
        assert file.read_bytes() == weights
        assert configs[0].model.served_model_name == ("org/tiny:Q8_0",)
        assert cli.main(["serve", str(file), "--device", "cpu"]) == 0
        assert configs[1].model.gguf_path == file
        assert cli.main(["serve", str(file), "--gguf_path", str(file)]) == 2
        assert cli.main(["serve", "missing/model.gguf"]) == 2
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    reported = capsys.readouterr().err
    assert "are two models; pass one" in reported
    assert "no such file" in reported


def test_progress_on_a_terminal_and_in_a_log() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    last = "10.0 MiB of 10.0 MiB, 921.6 KiB/s"
    for out, before in ((io.StringIO(), ""), (Terminal(), "\r\x1b[K")):
        now = [0.0]
        progress = Progress(10 << 20, out, lambda now=now: now[0])
        progress.found(1 << 20)
        now[0] = 10.0
        progress.received(4 << 20)
        progress.received(5 << 20)
        progress.end()
        middle = f"{before}5.0 MiB of 10.0 MiB, 409.6 KiB/s, 12 s left"
        assert out.getvalue() == f"{middle}{'' if before else chr(10)}{before}{last}\n"


def test_names_and_choices() -> None:
    assert read_name("org/repo:UD-Q4_K_XL@v1") == HubName("org/repo", "UD-Q4_K_XL", "v1")
    for wrong in ("repo", "a/b/c", "../b", "a/b@../c", "a/b:", "a/b\n", "a/b:../c"):
        with pytest.raises(ConfigError):
            read_name(wrong)

    def file(path: str) -> HubFile:
        return HubFile(path, 1, "a" * 64)

    shards = tuple(file(f"UD-Q4_K_XL/m-UD-Q4_K_XL-0000{index}-of-00002.gguf") for index in (1, 2))
    others = (file("m-Q2_K-00001-of-00002.gguf"), file("mmproj-F16.gguf"), file("m.Q4_K_M.gguf"), file("mtp-m.gguf"))
    found = choices((*reversed(shards), *others))
    assert found == (Choice("Q4_K_M", (others[2],)), Choice("UD-Q4_K_XL", shards))
    assert choose(HubName("a/b", "q4_k_m"), found).files == (others[2],)
    for path in ("._m.gguf", "__MACOSX/._m-Q8_0.gguf", "m.mmproj-Q8_0.gguf", "m-imatrix.gguf", "imatrix_m.gguf"):
        assert choices((file(path), file("m-imatrix-Q8_0.gguf"))) == (Choice("Q8_0", (file("m-imatrix-Q8_0.gguf"),)),)
    same = choices((file("a/m-Q8_0.gguf"), file("b/m-Q8_0.gguf")))
    assert [choice.quant for choice in same] == ["a/m-Q8_0", "b/m-Q8_0"]
    assert choose(read_name("org/repo:b/m-Q8_0"), same).files == (file("b/m-Q8_0.gguf"),)
