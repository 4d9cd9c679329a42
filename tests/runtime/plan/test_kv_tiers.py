"""The plan of the KV cache tiers: host memory from what is left, and the disk tier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ballast.config.options import Config, MachineConfig, ModelConfig, SchedulingConfig
from ballast.config.resolve import resolve
from ballast.errors import ConfigError
from ballast.model.metadata import read_spec
from ballast.model.spec import ModelSpec
from ballast.model.tiers.disk_folder import disk_memory_bytes
from ballast.plan.command import plan_for, planned
from ballast.plan.described import Described
from ballast.plan.gpus.device import kv_row_bytes
from ballast.plan.kv_tiers import MAX_AUTO_BYTES, auto_host_bytes
from ballast.plan.memory import MemoryPlan
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.written import write_tiny_model

GIB = 1 << 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[GgufModel, ModelSpec]:
    gguf = open_gguf(write_tiny_model(tmp_path_factory.mktemp("tiny")).gguf)
    return gguf, read_spec(gguf)


def settled(tiny: tuple[GgufModel, ModelSpec], host: int, **machine: object) -> tuple[Config, MemoryPlan]:
    gguf, spec = tiny
    requested = {"device": "cuda:15", "vram_limit": (8 * GIB,), "cpu_threads": 1, "gpu_experts": 0, **machine}
    config = Config(ModelConfig(gguf_path=gguf.path), SchedulingConfig(cache_lens=8192), MachineConfig(**requested))
    made = plan_for(config, gguf, spec, Described(host_memory=host))
    return planned(config, made), made


def rows(plan: MemoryPlan) -> dict[str, int]:
    return {row.name: row.num_bytes for row in plan.uses}


def test_auto_uses_half_of_the_remaining_memory_within_bounds() -> None:
    assert auto_host_bytes(10 * GIB) == 5 * GIB
    assert auto_host_bytes(1000 * GIB) == MAX_AUTO_BYTES
    assert auto_host_bytes(2 * GIB - 2) == 0
    assert auto_host_bytes(-GIB) == 0


def test_auto_is_resolved_by_the_plan_and_never_exceeds_memory(tiny: tuple[GgufModel, ModelSpec]) -> None:
    for host, least in ((64 * GIB, 25 * GIB), (8 * GIB, 2 * GIB), (4 * GIB, 0)):
        config, plan = settled(tiny, host)
        taken = config.machine.kv_host_bytes
        assert taken is not None
        assert taken >= least
        assert rows(plan).get("KV cache in RAM", 0) == taken
        assert plan.fits
    assert taken == 0


def test_requested_tiers_are_planned_and_counted(tiny: tuple[GgufModel, ModelSpec]) -> None:
    _, without = settled(tiny, 64 * GIB, kv_host_bytes=0)
    config, plan = settled(tiny, 64 * GIB, kv_host_bytes=10 * GIB)
    assert config.machine.kv_host_bytes == 10 * GIB
    assert plan.needed_bytes == without.needed_bytes + 10 * GIB
    assert plan.gpus is not None
    assert without.gpus is not None
    assert plan.gpus.needed_bytes > without.gpus.needed_bytes, "what is copied goes through the GPU"
    _, too_much = settled(tiny, 64 * GIB, kv_host_bytes=63 * GIB)
    assert not too_much.fits


def test_the_buffers_for_disk_writes_are_planned(tiny: tuple[GgufModel, ModelSpec], tmp_path: Path) -> None:
    gguf, spec = tiny
    config = Config(ModelConfig(gguf_path=gguf.path), machine=MachineConfig(device="cpu", cpu_threads=1))
    assert "KV on its way to disk" not in rows(plan_for(config, gguf, spec))
    requested = replace(config, machine=replace(config.machine, kv_disk_dir=tmp_path))
    assert 0 < rows(plan_for(requested, gguf, spec))["KV on its way to disk"] < 512 << 20


def test_options_without_effect_are_rejected_by_name(tmp_path: Path) -> None:
    def resolved(**machine: object) -> Config:
        return resolve(Config(machine=MachineConfig(device="cpu", **machine)), 2)

    with pytest.raises(
        ConfigError, match=r"kv_host_bytes=1GiB: .* the KV cache is in host memory, and device=cpu uses no GPU"
    ):
        resolved(kv_host_bytes=GIB)
    with pytest.raises(ConfigError, match=r"kv_type=fp8: .* a CPU keeps fp16 or fp32, and device=cpu uses no GPU"):
        resolved(kv_type="fp8")
    for kv_type in ("fp16", "fp32"):
        assert resolved(kv_type=kv_type).machine.kv_type == kv_type
    with pytest.raises(ConfigError, match="kv_type=fp32: is for a CPU's KV cache; with device=cuda:0"):
        resolve(Config(machine=MachineConfig(device="cuda:0", kv_type="fp32")), 2)
    with pytest.raises(ConfigError, match="kv_disk_bytes=1GiB: limits a folder; set the folder with kv_disk_dir"):
        resolved(kv_disk_bytes=GIB)
    with pytest.raises(ConfigError, match=r"kv_disk_dir=.*expected a folder"):
        resolved(kv_disk_dir=tmp_path / "none" / "kv")
    assert resolved(kv_disk_dir=tmp_path / "kv", kv_disk_bytes=GIB).machine.kv_host_bytes == 0


def test_recurrent_states_on_their_way_to_disk_are_counted(tmp_path: Path) -> None:
    gguf = open_gguf(write_tiny_model(tmp_path, arch="qwen3next").gguf)
    spec = read_spec(gguf)
    config = Config(
        ModelConfig(gguf_path=gguf.path), machine=MachineConfig(device="cpu", cpu_threads=1, kv_disk_dir=tmp_path)
    )
    plan = plan_for(config, gguf, spec)
    block_tokens = config.scheduling.block_tokens
    without = disk_memory_bytes(kv_row_bytes(spec, "fp32") * block_tokens, block_tokens)
    assert rows(plan)["KV on its way to disk"] == without + 5 * spec.state_bytes
