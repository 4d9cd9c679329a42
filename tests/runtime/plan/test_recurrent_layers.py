"""The plan of a model with recurrent layers on GPUs, without the refusal of untested layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ballast._core import kernels
from ballast.config.options import Config, MachineConfig, ModelConfig
from ballast.host.machine import Memory
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.recurrent.state_pool import DeviceStatePool
from ballast.model.kv_pool import num_kv_blocks, num_state_slots
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.layer import Mixer
from ballast.model.spec import ModelSpec
from ballast.model.tiers.disk_folder import disk_memory_bytes
from ballast.plan import command, plan_for
from ballast.plan.described import Described
from ballast.plan.gpus.device import kv_row_bytes
from ballast.plan.gpus.gpu_experts import GpuExpertOptions
from ballast.plan.gpus.gpu_limits import why_not_on_gpu
from ballast.plan.gpus.hybrid import make_hybrid_plan
from ballast.plan.gpus.work import step_bytes
from ballast.plan.memory import DeviceMemory, DevicePlan, MemoryPlan, Numbers
from ballast.plan.reports.speed_report import work_of
from ballast.plan.speed import Rates, decode
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.specs.kimi import KIMI_LINEAR_48B_SPEC
from devkit.models.specs.qwen3 import FLASH_NEXT_125B_SPEC, QWEN35_122B_SPEC
from devkit.models.specs.qwen3 import QWEN3_NEXT_80B_SPEC as SPEC

GIB, TIB = 1 << 30, 1 << 40
FAST = kernels.usable_isas()[0]
NUMBERS = Numbers(cache_lens=32768, block_tokens=32, max_batch_size=4, chunk_size=256, prefill_chunk_size=256, isa=FAST)
HOST = Memory(1024 * GIB, 512 * GIB, None)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    file = tmp_path_factory.mktemp("next") / "next.gguf"
    return open_gguf(write_hollow_model(file, SPEC, common_types(SPEC)))


def planned(
    gguf: GgufModel, vram: list[int], ranges: list[range] | None = None, numbers: Numbers = NUMBERS
) -> MemoryPlan:
    devices = [DeviceMemory(f"cuda:{number}", size, "the limit") for number, size in enumerate(vram)]
    return make_hybrid_plan(gguf, SPEC, numbers, HOST, devices, GpuExpertOptions(0), ranges=ranges)


def use(device: DevicePlan, name: str) -> int:
    return sum(row.num_bytes for row in device.uses if row.name == name)


def made(
    layers: range, num_blocks: int, max_batch_size: int, spec: ModelSpec = SPEC, num_snapshots: int | None = None
) -> tuple[int, int]:
    """Bytes of the states and of the cache that a device makes."""
    num_slots = num_state_slots(spec.states, num_blocks * 32, max_batch_size, num_snapshots, on_gpu=True)
    meta = torch.device("meta")
    states = DeviceStatePool([spec.layers[layer] for layer in layers], spec.hidden, num_slots, meta)
    kv = DeviceKvPool([spec.planes[layer] for layer in layers], num_blocks, 32, torch.float16, meta)
    tensors = [tensor for layer in states.layers if layer is not None for tensor in layer]
    return sum(tensor.nbytes for tensor in tensors), sum(tensor.nbytes for tensor in kv.tensors)


@pytest.mark.parametrize(
    ("cache_lens", "max_batch_size", "num_snapshots", "option"),
    [
        (1000, 4, None, "max_batch_size"),
        (262_144, 2, None, "state_snapshots"),  # one per 8,192 tokens
        (1000, 1, None, "state_snapshots"),
        (1000, 1, 1, None),
        (1000, 4, 2, "max_batch_size"),
        (32768, 16, None, "max_batch_size"),
        (32768, 4, 50, "state_snapshots"),
    ],
)
def test_states_are_those_of_the_pool(
    gguf: GgufModel, cache_lens: int, max_batch_size: int, num_snapshots: int | None, option: str | None
) -> None:
    """`option`: the one that the plan advises to lower."""
    numbers = replace(NUMBERS, cache_lens=cache_lens, max_batch_size=max_batch_size, state_snapshots=num_snapshots)
    [device] = planned(gguf, [80 * GIB], numbers=numbers).devices
    expected = made(range(SPEC.num_layers), num_kv_blocks(cache_lens, 32), max_batch_size, num_snapshots=num_snapshots)
    assert (use(device, "recurrent state"), use(device, "KV cache")) == expected
    [row] = [row for row in device.uses if row.name == "recurrent state"]
    assert row.detail.endswith("slots and the null slot, 75.4 MiB each")
    assert row.option == option


@pytest.mark.parametrize("spec", [KIMI_LINEAR_48B_SPEC, FLASH_NEXT_125B_SPEC], ids=lambda spec: spec.name)
def test_states_of_other_layers_are_those_of_the_pool(tmp_path: Path, spec: ModelSpec) -> None:
    """Kimi Delta Attention; and an n-gram embedding and incomplete blocks of positions."""
    file = open_gguf(write_hollow_model(tmp_path / "other.gguf", spec, common_types(spec)))
    devices = [DeviceMemory("cuda:0", 80 * GIB, "the limit")]
    [device] = make_hybrid_plan(file, spec, NUMBERS, HOST, devices, GpuExpertOptions(0)).devices
    expected = made(range(spec.num_layers), num_kv_blocks(NUMBERS.cache_lens, 32), NUMBERS.max_batch_size, spec)
    assert (use(device, "recurrent state"), use(device, "KV cache")) == expected


def test_each_device_has_the_states_of_its_layers(gguf: GgufModel) -> None:
    ranges = [range(13), range(13, 47), range(47, 48)]
    plan = planned(gguf, [24 * GIB] * 3, ranges)
    num_blocks = num_kv_blocks(NUMBERS.cache_lens, 32)
    for device, layers in zip(plan.devices, ranges, strict=True):
        expected = made(layers, num_blocks, NUMBERS.max_batch_size)
        assert (use(device, "recurrent state"), use(device, "KV cache")) == expected
    assert [use(device, "recurrent state") > 0 for device in plan.devices] == [True, True, False]


def test_the_largest_cache_leaves_room_for_its_states(gguf: GgufModel) -> None:
    [device] = planned(gguf, [24 * GIB]).devices
    longest = replace(NUMBERS, cache_lens=device.max_cache_lens)
    beyond = replace(NUMBERS, cache_lens=device.max_cache_lens + 32)
    needed = [
        sum(row.num_bytes for row in planned(gguf, [24 * GIB], numbers=numbers).devices[0].uses)
        for numbers in (longest, beyond)
    ]
    assert needed[0] <= 24 * GIB < needed[1]


def test_work_buffers_hold_the_products_of_recurrent_layers() -> None:
    """With many heads they are wider than attention and experts in a short step."""
    nets = [mixer for mixer in QWEN35_122B_SPEC.mixers if isinstance(mixer, DeltaNetSpec)]
    wide = replace(nets[0], num_heads=256)

    def with_net(net: DeltaNetSpec) -> int:
        def mixer_of(mixer: Mixer) -> Mixer:
            return net if isinstance(mixer, DeltaNetSpec) else mixer

        layers = tuple(replace(layer, mixer=mixer_of(layer.mixer)) for layer in QWEN35_122B_SPEC.layers)
        return step_bytes(replace(QWEN35_122B_SPEC, layers=layers), 64, 4)

    plain, grouped = with_net(wide), with_net(replace(wide, product_layout="grouped"))
    assert with_net(nets[0]) < plain
    assert grouped - plain == 64 * 4 * (wide.channels + wide.value_width)


def test_work_buffers_hold_the_long_slices_of_kimi_delta_attention() -> None:
    nets = [mixer for mixer in KIMI_LINEAR_48B_SPEC.mixers if isinstance(mixer, KimiDeltaSpec)]
    wide = replace(nets[0], num_heads=256)
    layers = tuple(
        replace(layer, mixer=wide) if layer.mixer == nets[0] else layer for layer in KIMI_LINEAR_48B_SPEC.layers
    )
    spec = replace(KIMI_LINEAR_48B_SPEC, layers=layers)
    beyond_stream = [step_bytes(spec, length, 4) - 6 * 4 * spec.hidden * length for length in (2048, 4096, 8192)]
    per_token = (beyond_stream[1] - beyond_stream[0]) / 2048
    assert per_token > 7 * 4 * wide.width
    assert beyond_stream[2] == beyond_stream[1]


def test_states_are_read_and_written_in_the_memory_of_the_gpu(gguf: GgufModel) -> None:
    work = work_of(gguf, SPEC, planned(gguf, [80 * GIB]))
    assert work.state_bytes == 79_036_416
    rates = Rates(memory=100e9, num_threads=64, isa="avx512", gpu_memory=1000e9, pcie=25e9)
    for batch in (1, 16):
        with_states, without = (
            batch / decode(each, rates, batch).tokens_per_s for each in (work, replace(work, state_bytes=0))
        )
        assert with_states - without > batch * 2 * work.state_bytes / 1000e9 * 0.9


@pytest.mark.parametrize(("key_dim", "v_dim"), [(96, 128), (256, 128), (128, 80)])
def test_heads_that_kernels_do_not_support_are_named(key_dim: int, v_dim: int) -> None:
    layers = [
        replace(layer, mixer=replace(layer.mixer, key_dim=key_dim, v_dim=v_dim))
        if isinstance(layer.mixer, DeltaNetSpec)
        else layer
        for layer in SPEC.layers
    ]
    problem = why_not_on_gpu(replace(SPEC, layers=tuple(layers)))
    assert problem is not None
    assert problem.startswith(f"its recurrent layers have keys of {key_dim} and values of {v_dim} numbers; kernels on")


def on_a_gpu(gguf: GgufModel, monkeypatch: pytest.MonkeyPatch, **options: object) -> MemoryPlan:
    monkeypatch.setattr(command, "why_not_on_gpu", lambda _: None)
    monkeypatch.setattr(command, "_device_memories", lambda *_: [DeviceMemory("cuda:0", 24 * GIB, "the limit")])
    machine = MachineConfig(device="cuda:0", cpu_threads=1, **options)
    return plan_for(Config(ModelConfig(gguf_path=gguf.path), machine=machine), gguf, SPEC, Described(host_memory=TIB))


def test_tiers_hold_states(gguf: GgufModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three quarters of the host memory are for blocks. States cross the bus without a buffer on the GPU."""
    without, plan = (on_a_gpu(gguf, monkeypatch, kv_host_bytes=num_bytes) for num_bytes in (0, 8 * GIB))
    [row] = [row for row in plan.uses if row.name == "KV cache in RAM"]
    state_bytes, token_bytes = SPEC.state_bytes, kv_row_bytes(SPEC, "fp16")
    num_states = 2 * GIB // state_bytes
    num_tokens = (8 * GIB - num_states * state_bytes) // (32 * token_bytes) * 32
    assert row.num_bytes == 8 * GIB
    assert row.detail == f"{num_tokens} tokens and {num_states} recurrent states evicted from the GPU, pinned"
    assert use(plan.devices[0], "recurrent state") == use(without.devices[0], "recurrent state") > 0
    assert use(plan.devices[0], "KV on its way") == 16 * 32 * token_bytes

    on_disk = on_a_gpu(gguf, monkeypatch, kv_host_bytes=0, kv_disk_dir=tmp_path)
    [row] = [row for row in on_disk.uses if row.name == "KV on its way to disk"]
    assert row.num_bytes == disk_memory_bytes(32 * token_bytes, 32) + 4 * state_bytes, "three stores and one fetch"


def test_automatic_tiers_are_used(gguf: GgufModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = on_a_gpu(gguf, monkeypatch, kv_host_bytes=None)
    host_bytes = plan.numbers.tiers.host_bytes
    assert host_bytes is not None
    assert sum(row.num_bytes for row in plan.uses if row.name == "KV cache in RAM") == host_bytes > 0
