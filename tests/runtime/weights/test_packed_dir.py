"""A folder of packed weights: a start that uses it computes the same as one without. A faulty folder costs only the
time of packing and one warning that names the cause."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ballast._core import kernels
from ballast._core.numa import Node, Topology
from ballast.engine.startup.build import EngineSettings
from ballast.engine.startup.loading import load_runner
from ballast.host.filesystem import read_file_system
from ballast.model.batch import Batch
from ballast.model.kept_weights import KeptWeights
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.weights.gguf import open_gguf
from ballast.weights.packed_set import MANIFEST, PackedSet, file_name, unused_bytes
from devkit.models.written import write_tiny_model

pytestmark = pytest.mark.skipif(len(kernels.usable_isas()) == 1, reason="no kernels that pack weights")

MEMORY = Path("/dev/shm")
KEPT, MAPPED, READ = "packed weights kept", "packed weights mapped", "packed weights read"
STALE, NOT_KEPT = "stale packed weights cannot be removed", "packed weights are not kept"
UNUSED, DAMAGED = "packed_dir is not used", "packed weights cannot be used"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), arch="v2lite", mla="joint", quant="q4_k_m").gguf


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    where = tmp_path if request.param == "disk" else Path(tempfile.mkdtemp(dir=MEMORY))
    if read_file_system(where).is_in_memory != (request.param == "memory"):
        pytest.skip(f"{where} is no {request.param}")
    yield where / "packed"
    if where != tmp_path:
        shutil.rmtree(where)


class Log:
    """Log events of a start, without those of threads."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.records = [record for record in caplog.records if record.name.startswith("ballast.weights.packed")]
        self.events = [record.getMessage() for record in self.records]

    @property
    def why(self) -> str:
        """The reason in the only warning."""
        [warning] = [record for record in self.records if record.levelno >= logging.WARNING]
        return str(vars(warning)["why"])


Start = Callable[..., tuple[np.ndarray, Log]]


@pytest.fixture
def start(caplog: pytest.LogCaptureFixture) -> Start:
    def started(model: Path, folder: Path | None, **settings: object) -> tuple[np.ndarray, Log]:
        """Load the model and close it; return its logits and the log."""
        caplog.clear()
        with caplog.at_level(logging.INFO, "ballast"):
            runner = loaded(model, folder, **settings)
            for thread in threading.enumerate():
                if thread.name == "ballast-keep":
                    thread.join()
        result = logits(runner)
        del runner  # the set is no longer in use
        return result, Log(caplog)

    return started


def loaded(
    model: Path, folder: Path | None, report: Callable[[float], None] = lambda _: None, **other: object
) -> Runner:
    gguf = open_gguf(model)
    spec = read_spec(gguf, None)
    settings = {"cache_lens": 64, "max_new_tokens": 8, "max_batch_size": 1, "chunk_size": 16, "prefill_chunk_size": 16}
    numbers = EngineSettings(**settings, max_queue=1, packed_dir=folder, **({"cpu_threads": 2} | other))  # type: ignore[arg-type]
    return load_runner(gguf, spec, spec.vocab_size, numbers, report)


def logits(runner: Runner) -> np.ndarray:
    """Logits for a prompt of three tokens."""
    indptr, positions = np.array([0, 3], np.int32), np.arange(3, dtype=np.int32)
    batch = Batch(
        token_ids=np.array([3, 1, 4], np.int32),
        positions=positions,
        slots=np.int32(32) + positions,
        query_indptr=indptr,
        kv_indptr=np.array([0, 1], np.int32),
        kv_indices=np.array([1], np.int32),
        sampled=positions.astype(np.int64),
    )
    return runner.forward(batch, lambda: None).copy()


def only_set(folder: Path) -> Path:
    [found] = folder.iterdir()
    return found


def found_again(folder: Path) -> str:
    return MAPPED if read_file_system(folder).is_in_memory else READ


def test_a_start_that_finds_them_computes_the_same(model: Path, folder: Path, start: Start) -> None:
    plain, _ = start(model, None)
    first, log = start(model, folder)
    assert log.events == [KEPT]
    again, log = start(model, folder)
    assert log.events == [found_again(folder)]
    np.testing.assert_array_equal(first, plain)
    np.testing.assert_array_equal(again, plain)


def test_only_the_owner_may_read_the_files(model: Path, folder: Path, start: Start) -> None:
    start(model, folder)
    assert only_set(folder).stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in only_set(folder).iterdir()} == {0o600}


def packed_with(what: str) -> str:
    """The name for matrices that are packed together: gate, up and down of a layer's experts."""
    return re.sub(r"ffn_(gate|up|down)(\S+) .*", r"ffn\2", what)


def test_a_changed_byte_in_any_kind_of_matrix_is_found_and_named(model: Path, folder: Path, start: Start) -> None:
    plain, _ = start(model, folder)
    files = json.loads((only_set(folder) / MANIFEST).read_text())["files"]
    kinds = {re.sub(r"^blk.\d+", "", file["what"]): index for index, file in enumerate(files)}
    assert len(kinds) > 10
    for index in kinds.values():
        file = only_set(folder) / file_name(index)
        data = bytearray(file.read_bytes())
        data[5] ^= 1
        file.write_bytes(data)
        result, log = start(model, folder)
        np.testing.assert_array_equal(result, plain)
        assert log.events == [DAMAGED, found_again(folder)]
        assert str(file) in log.why
        assert "checksum" in log.why
        used = [kept["num_bytes"] for kept in files if packed_with(kept["what"]) != packed_with(files[index]["what"])]
        assert vars(log.records[-1])["bytes"] == sum(used)
        assert start(model, folder)[1].events == [KEPT]


@pytest.mark.parametrize(  # with matrices of heads, and with several in one tensor
    ("arch", "mla"), [("v2lite", "joint"), ("mimov2", "split")]
)
def test_scales_of_matrices_are_there_at_every_start(
    tmp_path: Path, folder: Path, start: Start, arch: str, mla: str
) -> None:
    model = write_tiny_model(tmp_path / "made", arch=arch, mla=mla, quant="nvfp4").gguf
    plain, _ = start(model, None)
    first, log = start(model, folder)
    assert log.events == [KEPT]
    second, log = start(model, folder)
    assert log.events == [found_again(folder)]
    np.testing.assert_array_equal([first, second], [plain, plain])


def cut(file: Path) -> None:
    os.truncate(file, 4096)


def lengthen(file: Path) -> None:
    os.truncate(file, file.stat().st_size + 4096)


def remove(file: Path) -> None:
    file.unlink()


def link(file: Path) -> None:
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)


def make_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def open_to_others(file: Path) -> None:
    file.chmod(0o666)


@pytest.mark.parametrize("damage", [cut, lengthen, remove, link, make_fifo, open_to_others])
def test_a_changed_file_is_detected_and_reported(
    model: Path, folder: Path, start: Start, damage: Callable[[Path], None]
) -> None:
    plain, _ = start(model, folder)
    file = max(only_set(folder).glob("*.panels"), key=lambda file: file.stat().st_size)
    damage(file)
    result, log = start(model, folder)
    np.testing.assert_array_equal(result, plain)
    assert log.events == [DAMAGED, found_again(folder)]
    assert file.name in log.why
    assert start(model, folder)[1].events == [KEPT]
    assert start(model, folder)[1].events == [found_again(folder)]


@pytest.mark.parametrize("content", [b"", b"{", b'{"files": 3}', b"\xff\xff", b'{"files": []}'])
def test_a_damaged_manifest_is_found_and_named(model: Path, folder: Path, start: Start, content: bytes) -> None:
    plain, _ = start(model, folder)
    (only_set(folder) / MANIFEST).write_bytes(content)
    result, log = start(model, folder)
    np.testing.assert_array_equal(result, plain)
    assert log.events[0] == DAMAGED
    assert str(only_set(folder)) in log.why
    start(model, folder)
    assert start(model, folder)[1].events == [found_again(folder)]


def test_holes_are_not_mapped(model: Path, folder: Path, start: Start) -> None:
    start(model, folder)
    if found_again(folder) == READ:
        pytest.skip("no memory-mapped folder: temporary files are on a disk here; set TMPDIR to a folder in memory")
    file = max(only_set(folder).glob("*.panels"), key=lambda file: file.stat().st_size)
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)
    assert "holes" in start(model, folder)[1].why


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_packed_dir import loaded
def report(share):
    if sys.argv[4] == "memory": os.kill(os.getpid(), signal.SIGKILL)
runner = loaded(Path(sys.argv[1]), Path(sys.argv[2]), report)
os.kill(os.getpid(), signal.SIGKILL)
"""


def in_a_process(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_start_leaves_no_usable_set(model: Path, folder: Path, start: Start) -> None:
    plain, _ = start(model, None)
    folder.mkdir()
    kind = "memory" if read_file_system(folder).is_in_memory else "disk"
    with in_a_process(KILLED, model, folder, Path(__file__).parent, kind) as process:
        assert process.wait(60) == -signal.SIGKILL
    assert not (only_set(folder) / MANIFEST).exists()
    result, log = start(model, folder)
    assert log.events == [KEPT]
    np.testing.assert_array_equal(result, plain)
    assert start(model, folder)[1].events == [found_again(folder)]


WAITING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_packed_dir import loaded
def report(share):
    if share < 0.5: print("writes", flush=True); sys.stdin.readline()
runner = loaded(Path(sys.argv[1]), Path(sys.argv[2]), report)
import threading
for thread in threading.enumerate():
    if thread.name == "ballast-keep": thread.join()
print("loaded", flush=True); sys.stdin.readline()
"""


def test_of_two_starts_at_once_one_writes(model: Path, folder: Path, start: Start) -> None:
    plain, _ = start(model, None)
    with in_a_process(WAITING, model, folder, Path(__file__).parent) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "writes\n"
        result, log = start(model, folder)
        assert log.events == [UNUSED]
        assert "another process" in log.why
        np.testing.assert_array_equal(result, plain)
        other.stdin.write("\n")
        other.stdin.flush()
        while other.stdout.readline() != "loaded\n":
            other.stdin.write("\n")
            other.stdin.flush()
        # This process still uses them. Other processes may too, so they are not removed.
        result, log = start(model, folder)
        assert log.events == [found_again(folder)]
        np.testing.assert_array_equal(result, plain)
        assert unused_bytes(folder) == 0
        on_two_nodes(start, model, folder)
        assert len(list(folder.iterdir())) == 2
        other.communicate("\n", timeout=60)
    assert unused_bytes(folder) > 0


def test_a_plan_that_reads_a_set_does_not_block_a_start(model: Path, folder: Path, start: Start) -> None:
    start(model, folder)
    plan = PackedSet(folder, only_set(folder).name.removeprefix("ballast-packed-"))
    assert plan.lock(shared=False)
    end = threading.Timer(0.05, plan.close)
    end.start()
    assert start(model, folder)[1].events == [found_again(folder)]
    end.join()


def on_two_nodes(start: Start, model: Path, folder: Path) -> tuple[np.ndarray, Log]:
    """A start with its threads split over nodes. Runs in its own thread: the loading thread stays bound permanently."""
    # CPUs that no machine has, so no thread is bound to one.
    nodes = Topology([Node(200 + index, [9000 + index], [[9000 + index]]) for index in range(2)])
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(start, model, folder, topology=nodes, numa="auto").result()


def test_another_division_among_nodes_uses_another_set(model: Path, folder: Path, start: Start) -> None:
    first, _ = start(model, folder)
    before = only_set(folder)
    result, log = on_two_nodes(start, model, folder)
    assert log.events == [KEPT]
    assert only_set(folder) != before  # and the other set is deleted
    np.testing.assert_allclose(result, first, rtol=0, atol=1e-4 * np.abs(first).max())


def test_another_layout_uses_another_set(
    model: Path, folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model, folder)
    [before] = folder.iterdir()
    monkeypatch.setattr(kernels, "PANEL_LAYOUT_VERSION", kernels.PANEL_LAYOUT_VERSION + 1)
    assert start(model, folder)[1].events == [KEPT]
    assert only_set(folder) != before


def test_different_weights_with_equal_name_size_and_time_use_another_set(
    tmp_path: Path, folder: Path, start: Start
) -> None:
    results = []
    for seed, number in itertools.product((1, 2), range(2)):
        made = write_tiny_model(tmp_path / f"{seed}.{number}", arch="v2lite", quant="q8_0", seed=seed).gguf
        model = tmp_path / "model.gguf"
        shutil.copy(made, model)
        os.utime(model, ns=(0, 0))
        result, log = start(model, folder)
        assert log.events == ([KEPT] if number == 0 else [found_again(folder)])
        np.testing.assert_array_equal(result, start(model, None)[0])
        results.append(result)
    assert not np.array_equal(results[0], results[2])


def test_a_rewritten_file_is_another_model(tmp_path: Path, model: Path, folder: Path, start: Start) -> None:
    copy = tmp_path / "model.gguf"
    for second in (0, 1):
        shutil.copy(model, copy)
        os.utime(copy, ns=(second * 10**9, second * 10**9))
        assert start(copy, folder)[1].events == [KEPT]


def test_a_stale_set_that_cannot_be_removed_is_reported_and_harmless(model: Path, folder: Path, start: Start) -> None:
    stale = folder / f"ballast-packed-{'0' * 32}"
    (stale / "sub").mkdir(parents=True)
    stale.chmod(0o700)
    _, log = start(model, folder)
    assert log.events == [STALE, KEPT]
    assert log.why == f"{stale}/sub: Is a directory"


def test_unrelated_files_in_the_folder_are_kept(model: Path, folder: Path, start: Start) -> None:
    folder.mkdir()
    (folder / "mine").write_text("kept")
    (folder / "ballast-packed-notes").mkdir()
    start(model, folder)
    assert {"mine", "ballast-packed-notes"} < {found.name for found in folder.iterdir()}


def test_a_set_writable_by_others_is_recreated(model: Path, folder: Path, start: Start) -> None:
    start(model, folder)
    only_set(folder).chmod(0o2770)
    assert start(model, folder)[1].events == [KEPT]
    assert only_set(folder).stat().st_mode & 0o777 == 0o700
    assert start(model, folder)[1].events == [found_again(folder)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_set_of_another_user_is_not_used(model: Path, folder: Path, start: Start) -> None:
    plain, _ = start(model, folder)
    os.chown(only_set(folder), 12345, 12345)
    result, log = start(model, folder)
    np.testing.assert_array_equal(result, plain)
    assert log.events == [UNUSED]
    assert "12345" in log.why


def test_a_set_that_is_a_link_is_not_used(model: Path, folder: Path, start: Start) -> None:
    start(model, folder)
    kept = only_set(folder)
    kept.rename(folder.parent / "elsewhere")
    kept.symlink_to(folder.parent / "elsewhere")
    assert "link" in start(model, folder)[1].why


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root mounts")
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", where], check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    yield where
    subprocess.run(["umount", where], check=True)


def test_insufficient_space_is_detected_before_anything_is_written(
    model: Path, small_tmpfs: Path, start: Start
) -> None:
    plain, _ = start(model, None)
    result, log = start(model, small_tmpfs)
    np.testing.assert_array_equal(result, plain)
    assert log.events == [UNUSED]
    assert "256.0 KiB are free" in log.why


def test_an_unwritable_folder_is_reported(model: Path, small_tmpfs: Path, start: Start) -> None:
    plain, _ = start(model, small_tmpfs)
    lock = only_set(small_tmpfs) / "lock"
    for missing in (lock, lock.parent):
        subprocess.run(["mount", "-o", "remount,ro", small_tmpfs], check=True)
        result, log = start(model, small_tmpfs)
        np.testing.assert_array_equal(result, plain)
        assert log.events == [UNUSED]
        assert log.why == f"{missing}: Read-only file system"
        subprocess.run(["mount", "-o", "remount,rw", small_tmpfs], check=True)
        shutil.rmtree(lock.parent, ignore_errors=True)


def test_space_is_released_if_it_runs_out_during_a_write(
    model: Path, small_tmpfs: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = start(model, None)
    monkeypatch.setattr(KeptWeights, "file_bytes", lambda self, unit: 0)
    result, log = start(model, small_tmpfs)
    np.testing.assert_array_equal(result, plain)
    assert log.events == [NOT_KEPT]
    assert "No space left" in log.why
    assert [file.name for file in only_set(small_tmpfs).iterdir()] == ["lock"]
    assert start(model, small_tmpfs)[1].events == [NOT_KEPT]


def test_files_that_cannot_be_written_are_not_kept(model: Path, folder: Path, start: Start) -> None:
    plain, _ = start(model, None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        result, log = start(model, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    np.testing.assert_array_equal(result, plain)
    assert log.events == [NOT_KEPT]
    assert log.why == f"{only_set(folder)}: File too large"
    assert [file.name for file in only_set(folder).iterdir()] == ["lock"]
    assert start(model, folder)[1].events == [KEPT]


def test_a_model_closed_during_a_disk_write_stores_nothing(
    model: Path, tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read_file_system(tmp_path).is_in_memory:
        pytest.skip("no disk: temporary files are in memory here; set TMPDIR to another folder")
    closed, write_file = threading.Event(), PackedSet.write_file

    def wait_and_write(kept: PackedSet, name: str, memory: np.ndarray) -> None:
        assert closed.wait(60)
        write_file(kept, name, memory)

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "ballast"):
        patch.setattr(PackedSet, "write_file", wait_and_write)
        runner = loaded(model, tmp_path / "packed")
        [writer] = [thread for thread in threading.enumerate() if thread.name == "ballast-keep"]
        del runner
        closed.set()
        writer.join(60)
    assert Log(caplog).events == [NOT_KEPT]
    assert [record.levelno for record in Log(caplog).records] == [logging.INFO]
    assert [file.name for file in only_set(tmp_path / "packed").iterdir()] == ["lock"]
    assert start(model, tmp_path / "packed")[1].events == [KEPT]


def test_plain_loops_keep_nothing(model: Path, folder: Path, start: Start) -> None:
    _, log = start(model, folder, cpu_isa="reference")
    assert log.events == [UNUSED]
    assert "the instruction set reference" in log.why
    assert not folder.exists()


def test_a_folder_that_cannot_be_created_is_reported(model: Path, tmp_path: Path, start: Start) -> None:
    (tmp_path / "file").write_text("")
    plain, log = start(model, tmp_path / "file")
    assert log.events == [UNUSED]
    assert str(tmp_path / "file") in log.why
    np.testing.assert_array_equal(plain, start(model, None)[0])
