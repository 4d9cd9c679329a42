"""What a plan says of packed weights that a folder keeps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ballast._core import kernels
from ballast.config.options import Config, MachineConfig, ModelConfig, SchedulingConfig
from ballast.config.resolve import resolve
from ballast.engine.startup.build import engine_settings
from ballast.engine.startup.loading import load_runner
from ballast.errors import ConfigError
from ballast.host.filesystem import FileSystem, read_file_system
from ballast.model.kept_weights import KeptWeights
from ballast.plan import MemoryPlan, open_checked, planned, settle, to_json
from ballast.plan.rows import PackedFolder, host_weight_rows
from ballast.weights.packed_set import unused_bytes
from devkit.models.written import MakeTiny

pytestmark = pytest.mark.skipif(len(kernels.usable_isas()) == 1, reason="no kernels that pack weights")

PAGE = 4096
KEPT = KeptWeights(frozenset({"a", "b"}), (10 * PAGE, 5 * PAGE + 1), "avx2", (2,))


@pytest.fixture
def in_memory() -> Iterator[Path]:
    if not read_file_system(Path("/dev/shm")).is_in_memory:
        pytest.skip("/dev/shm is no tmpfs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder, "packed")


@pytest.fixture
def config(written: MakeTiny) -> Config:
    model = ModelConfig(gguf_path=written(arch="v2lite", mla="split", quant="q8_0").gguf)
    return Config(model, SchedulingConfig(cache_lens=256, max_new_tokens=32), MachineConfig(device="cpu", numa="off"))


def plan_with(config: Config, folder: Path | None) -> tuple[Config, MemoryPlan]:
    given = replace(config, machine=replace(config.machine, packed_dir=folder))
    gguf, spec = open_checked(given.model)
    return settle(resolve(given, 2), gguf, spec)


def rows(kind: str, free_bytes: int, unused_bytes: int = 0) -> dict[str, int]:
    folder = PackedFolder(Path("/there"), FileSystem(kind, PAGE, free_bytes), unused_bytes)
    return {row.name: row.num_bytes for row in host_weight_rows(100 * PAGE, "packed", KEPT, folder)}


def test_in_memory_they_are_a_row_of_their_own() -> None:
    assert rows("tmpfs", 1 << 30) == {"weights": 85 * PAGE - 1, "packed weights": 16 * PAGE}


def test_a_copy_on_a_disk_takes_no_memory() -> None:
    assert rows("ext4", 1 << 30) == {"weights": 100 * PAGE}


def test_without_room_they_are_packed_as_without_a_folder() -> None:
    assert rows("tmpfs", 15 * PAGE) == {"weights": 100 * PAGE}
    assert "packed weights" in rows("tmpfs", 15 * PAGE, unused_bytes=PAGE)


def test_the_row_equals_the_size_of_the_files(config: Config, in_memory: Path) -> None:
    settled, plan = plan_with(config, in_memory)
    gguf, spec = open_checked(settled.model)
    runner = load_runner(gguf, spec, spec.vocab_size, engine_settings(planned(settled, plan)))
    files = [file.stat().st_size for file in in_memory.glob("*/*.panels")]
    assert to_json(plan)["memory"]["packed_weights"] == sum(files)
    assert unused_bytes(in_memory) == 0
    del runner
    assert unused_bytes(in_memory) >= sum(files)


def test_a_set_of_a_running_server_takes_no_additional_memory(config: Config, in_memory: Path) -> None:
    settled, plan = plan_with(config, in_memory)
    alone = {row.name: row.num_bytes for row in plan.uses}
    gguf, spec = open_checked(settled.model)
    runner = load_runner(gguf, spec, spec.vocab_size, engine_settings(planned(settled, plan)))
    shared = {row.name: row for row in plan_with(config, in_memory)[1].uses}
    assert shared["packed weights"].num_bytes == 0
    assert shared["packed weights"].detail.endswith("are shared with a running server")
    assert {name: row.num_bytes for name, row in shared.items()} == alone | {"packed weights": 0}
    other = replace(config, machine=replace(config.machine, cpu_threads=1))
    [packed] = [row.num_bytes for row in plan_with(other, in_memory)[1].uses if row.name == "packed weights"]
    assert packed == alone["packed weights"] > 0
    del runner
    assert {row.name: row.num_bytes for row in plan_with(config, in_memory)[1].uses} == alone


def test_a_folder_in_no_folder_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "none" / "packed", tmp_path / "file"):
        with pytest.raises(ConfigError, match="packed_dir"):
            plan_with(config, wrong)
