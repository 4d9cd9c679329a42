"""The memory plan of a model whose layers are divided among GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ballast._core import kernels
from ballast.config.options import Config, MachineConfig, ModelConfig, SchedulingConfig
from ballast.errors import ConfigError, OutOfMemoryError
from ballast.host.machine import Memory
from ballast.model.hybrid.streaming.chunks import MAX_CHUNK_BYTES, NUM_BUFFERS
from ballast.model.layer_ranges import check_ranges
from ballast.plan import check_memory, device_settings, plan_for, render, to_json
from ballast.plan.described import Described
from ballast.plan.gpus.gpu_experts import UNSPENT_BYTES, GpuExpertOptions
from ballast.plan.gpus.hybrid import make_hybrid_plan
from ballast.plan.gpus.layer_ranges import _best_bounds, _Costs, layer_ranges
from ballast.plan.memory import DeviceMemory, DevicePlan, MemoryPlan, Numbers
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.quant_recipes import mxfp4_types
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.specs.glm import GLM52_SPEC
from devkit.models.specs.gpt_oss import GPT_OSS_20B_SPEC

GIB = 1 << 30
FAST = kernels.usable_isas()[0]
NUMBERS = Numbers(cache_lens=32768, block_tokens=32, max_batch_size=4, chunk_size=256, prefill_chunk_size=256, isa=FAST)
HOST = Memory(1024 * GIB, 512 * GIB, None)
RANGES = [range(3), range(3, 30), range(30, R1_SPEC.num_layers)]
"""The first device has dense layers only."""


@pytest.fixture(scope="module")
def r1(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    file = tmp_path_factory.mktemp("r1") / "r1.gguf"
    return open_gguf(write_hollow_model(file, R1_SPEC, common_types(R1_SPEC)))


def planned(
    r1: GgufModel,
    ranges: list[range],
    vram: list[int],
    wanted: GpuExpertOptions | None = None,
    numbers: Numbers = NUMBERS,
) -> MemoryPlan:
    devices = [DeviceMemory(f"cuda:{number}", size, "the limit") for number, size in enumerate(vram)]
    wanted = wanted or GpuExpertOptions()
    return make_hybrid_plan(r1, R1_SPEC, numbers, HOST, devices, wanted, ranges=ranges)


def use(device: DevicePlan, name: str) -> int:
    return sum(row.num_bytes for row in device.uses if row.name == name)


def test_devices_share_the_weights_and_the_cache_of_the_model(r1: GgufModel) -> None:
    one = planned(r1, [range(R1_SPEC.num_layers)], [80 * GIB])
    three = planned(r1, RANGES, [24 * GIB] * 3)
    check_memory(three)
    for name in ("dense weights", "KV cache"):
        assert sum(use(device, name) for device in three.devices) == use(one.devices[0], name)
        assert all(use(device, name) > 0 for device in three.devices)
    assert use(three.devices[0], "KV cache") * R1_SPEC.num_layers == 3 * use(one.devices[0], "KV cache")
    assert {row.num_bytes for row in three.uses} == {row.num_bytes for row in one.uses}
    assert [(each.name, each.layers) for each in device_settings(three)] == [
        ("cuda:0", RANGES[0]),
        ("cuda:1", RANGES[1]),
        ("cuda:2", RANGES[2]),
    ]


def test_tensors_are_on_the_device_of_their_layer(r1: GgufModel) -> None:
    three = planned(r1, RANGES, [24 * GIB] * 3)
    of_group = {group: {row.device for row in three.weights if row.group == group} for group in ("output", "attention")}
    assert of_group["output"] == {"cuda:2"}
    assert of_group["attention"] == {"cuda:0", "cuda:1", "cuda:2"}


def test_each_device_holds_experts_of_its_own_layers(r1: GgufModel) -> None:
    plan = planned(r1, RANGES, [24 * GIB, 80 * GIB, 40 * GIB], GpuExpertOptions(None))
    check_memory(plan)
    counts = [len(ids) for ids in plan.gpu_experts]
    first_of_last = RANGES[2][0] - R1_SPEC.routed_layers[0]
    assert counts[0] == counts[first_of_last] == R1_SPEC.routing.num_experts
    assert use(plan.devices[0], "GPU experts") == 0
    for device in plan.devices[1:]:
        spare = device.memory.available_bytes - device.needed_bytes - UNSPENT_BYTES
        assert 0 <= spare < 40 << 20, "an expert takes some 25 MiB"


def test_a_set_number_of_experts_is_that_of_all_devices(r1: GgufModel) -> None:
    plan = planned(r1, RANGES, [24 * GIB] * 3, GpuExpertOptions(300))
    assert sum(map(len, plan.gpu_experts)) == 300
    for layers in RANGES:  # each device has the same fraction of its layers' experts
        own = [ids for layer, ids in zip(R1_SPEC.routed_layers, plan.gpu_experts, strict=True) if layer in layers]
        assert sum(map(len, own)) == pytest.approx(300 * len(own) / len(R1_SPEC.routed_layers), abs=1)


def test_every_device_has_buffers_for_streamed_experts(r1: GgufModel) -> None:
    """Also one with dense layers only: it streams a share of the experts of every layer."""
    numbers = replace(NUMBERS, prefill_chunk_size=4096, streams_experts=True)
    plan = planned(r1, RANGES, [24 * GIB] * 3, numbers=numbers)
    assert [use(device, "expert buffers") for device in plan.devices] == [NUM_BUFFERS * MAX_CHUNK_BYTES] * 3


def test_every_device_has_biases_of_the_streamed_experts_of_all_layers(tmp_path: Path) -> None:
    spec = GPT_OSS_20B_SPEC
    gguf = open_gguf(write_hollow_model(tmp_path / "gpt-oss.gguf", spec, mxfp4_types(spec)))
    ranges, devices = [range(10), range(10, spec.num_layers)], [DeviceMemory(f"cuda:{n}", 24 * GIB, "") for n in (0, 1)]

    def biases(ranges: list[range], *, streams: bool) -> list[int]:
        numbers = replace(NUMBERS, prefill_chunk_size=4096, streams_experts=streams)
        plan = make_hybrid_plan(gguf, spec, numbers, HOST, devices[: len(ranges)], ranges=ranges)
        return [use(device, "biases of experts") for device in plan.devices]

    [of_all] = biases([range(spec.num_layers)], streams=False)
    assert biases([range(spec.num_layers)], streams=True) == [2 * of_all]
    first, second = biases(ranges, streams=False)
    assert first + second == of_all > 0
    assert biases(ranges, streams=True) == [first + of_all, second + of_all]


def test_a_pass_over_the_experts_uses_the_links_of_all_devices(r1: GgufModel) -> None:
    numbers = replace(NUMBERS, prefill_chunk_size=4096, streams_experts=True, threads_per_node=(16,))
    one = planned(r1, [range(R1_SPEC.num_layers)], [24 * GIB], numbers=numbers).gpus
    plan = planned(r1, RANGES, [24 * GIB] * 3, numbers=numbers)
    assert ", pass through 3 GPUs in about " in render(plan)
    three = plan.gpus
    assert one is not None
    assert three is not None
    assert one.streaming is not None
    assert three.streaming is not None
    assert three.streaming.pass_bytes == one.streaming.pass_bytes
    assert three.streaming.pass_s == pytest.approx(one.streaming.pass_s / 3)
    assert three.streaming.from_tokens == pytest.approx(one.streaming.from_tokens / 3, abs=1)
    assert three.streaming.assumed.startswith("25 GB/s to each of 3 GPUs and ")


def test_the_host_has_memory_for_what_devices_send_each_other_in_a_pass(r1: GgufModel) -> None:
    numbers = replace(NUMBERS, prefill_chunk_size=4096, streams_experts=True)

    def buffers(ranges: list[range], numbers: Numbers) -> int:
        uses = planned(r1, ranges, [24 * GIB] * len(ranges), numbers=numbers).uses
        return sum(row.num_bytes for row in uses if row.name == "work buffers")

    one, three = [range(R1_SPEC.num_layers)], RANGES
    of_token = 4 * (R1_SPEC.hidden + 2 * R1_SPEC.routing.num_experts_used)
    assert buffers(three, numbers) - buffers(one, numbers) == 3 * 4096 * of_token
    assert buffers(three, NUMBERS) == buffers(one, NUMBERS)


def test_the_cache_is_limited_by_the_smallest_device_for_its_layers(r1: GgufModel) -> None:
    plan = planned(r1, RANGES, [24 * GIB, 24 * GIB, 10 * GIB])
    assert plan.gpus is not None
    most = [device.max_cache_lens for device in plan.devices]
    assert plan.gpus.max_cache_lens == plan.largest_cache == most[2] < min(most[:2])
    reported, found = render(plan), to_json(plan)["device"]
    assert f"has room for cache_lens = {most[0]}, but cuda:2 has not\n" in reported
    assert f"has room for cache_lens = {most[1]}, but cuda:2 has not\n" in reported
    assert f"limits cache_lens to {most[2]}: no GPU has less room\n" in reported
    assert (found["max_cache_lens"], found["cache_limited_by"]) == (most[2], "cuda:2")


def test_devices_with_the_same_room_all_limit_the_cache(r1: GgufModel) -> None:
    reported = render(planned(r1, RANGES, [24 * GIB, 3 * GIB, 3 * GIB]))
    assert reported.count("limits cache_lens to 0: no GPU has less room\n") == 2
    assert "has room for cache_lens = 0" not in reported


def test_the_advice_for_a_cache_that_does_not_fit_is_for_all_devices(r1: GgufModel) -> None:
    """Also if another device than the first one that does not fit has the least room."""
    large = replace(NUMBERS, cache_lens=1 << 20)
    plan = planned(r1, RANGES, [24 * GIB, 24 * GIB, 10 * GIB], numbers=large)
    most = [device.max_cache_lens for device in plan.devices]
    assert not plan.devices[1].fits
    assert most[2] < most[1]
    with pytest.raises(OutOfMemoryError, match=rf"on cuda:2 \(.*; the largest cache_lens that fits is {most[2]}$"):
        check_memory(plan)
    fitting = planned(r1, RANGES, [24 * GIB, 24 * GIB, 10 * GIB], numbers=replace(NUMBERS, cache_lens=most[2]))
    check_memory(fitting)


def test_an_error_names_the_device_that_is_too_small(r1: GgufModel) -> None:
    plan = planned(r1, RANGES, [24 * GIB, 4 * GIB, 24 * GIB])
    assert not plan.fits
    with pytest.raises(OutOfMemoryError, match=r"needs .* on cuda:1 "):
        check_memory(plan)


def test_people_see_each_device_and_programs_all_together(r1: GgufModel) -> None:
    plan = planned(r1, RANGES, [24 * GIB] * 3)
    text = render(plan)
    assert [f"Memory of cuda:{number}" in text for number in range(3)] == [True] * 3
    found = to_json(plan)["device"]
    assert found["name"] == "cuda:0, cuda:1, cuda:2"
    assert found["needed_bytes"] == sum(found["memory"].values()) == sum(each.needed_bytes for each in plan.devices)
    assert found["available_bytes"] == 3 * 24 * GIB
    assert found["fits"]


def divided(r1: GgufModel, vram: list[int], experts: GpuExpertOptions | None = None) -> list[int]:
    """The number of layers of each device."""
    devices = [DeviceMemory(f"cuda:{number}", size, "the limit") for number, size in enumerate(vram)]
    ranges = layer_ranges(r1, R1_SPEC, NUMBERS, devices, experts or GpuExpertOptions(None))
    assert [layer for own in ranges for layer in own] == list(range(R1_SPEC.num_layers))
    return [len(own) for own in ranges]


def test_equal_devices_stream_equal_bytes(r1: GgufModel) -> None:
    assert divided(r1, [24 * GIB]) == [R1_SPEC.num_layers]
    assert divided(r1, [24 * GIB] * 2) == [32, 29], "the first three layers have no routed experts"
    assert max(divided(r1, [24 * GIB] * 8)) <= 11


def test_a_larger_device_has_more_layers_and_all_fit(r1: GgufModel) -> None:
    vram = [80 * GIB, 24 * GIB, 40 * GIB]
    counts = divided(r1, vram)
    assert counts[0] > counts[2] > counts[1]
    devices = [DeviceMemory(f"cuda:{number}", size, "the limit") for number, size in enumerate(vram)]
    ranges = layer_ranges(r1, R1_SPEC, NUMBERS, devices, GpuExpertOptions(None))
    plan = planned(r1, ranges, vram, GpuExpertOptions(None))
    check_memory(plan)
    per_layer = R1_SPEC.routing.num_experts
    resident = [len(ids) for ids in plan.gpu_experts]
    streamed = [
        sum(per_layer - resident[layer - R1_SPEC.routed_layers[0]] for layer in own if layer in R1_SPEC.routed_layers)
        for own in ranges
    ]
    assert max(streamed) - min(streamed) <= 2 * per_layer


def test_a_device_that_is_too_small_for_equal_layers_has_fewer(r1: GgufModel) -> None:
    none = GpuExpertOptions()
    assert divided(r1, [24 * GIB] * 2, none) == [32, 29]
    small = divided(r1, [24 * GIB, 5 * GIB], none)
    assert small[1] < 29
    devices = [DeviceMemory("cuda:0", 24 * GIB, ""), DeviceMemory("cuda:1", 5 * GIB, "")]
    check_memory(planned(r1, layer_ranges(r1, R1_SPEC, NUMBERS, devices, none), [24 * GIB, 5 * GIB]))


@pytest.mark.parametrize("seed", range(12))
def test_no_other_division_is_better(seed: int) -> None:
    """Compared with all divisions, by the maxima over the devices."""
    rng = np.random.default_rng(seed)
    num_layers, num_devices = 9, int(rng.integers(2, 5))

    def sums(most: int) -> list[int]:
        return [0, *itertools.accumulate(rng.integers(0, most, num_layers).tolist())]

    available = rng.integers(2 * UNSPENT_BYTES, 5 * UNSPENT_BYTES, num_devices).tolist()
    share = None if seed % 2 else 0.25
    costs = _Costs(available, UNSPENT_BYTES // 8, sums(UNSPENT_BYTES), sums(UNSPENT_BYTES), share)
    begins = sorted(rng.choice(range(1, num_layers), 6, replace=False).tolist())

    def cost(bounds: Sequence[int]) -> tuple[float, ...]:
        ends = itertools.pairwise((0, *bounds, num_layers))
        of_devices = [costs.of_range(number, *each) for number, each in enumerate(ends)]
        return tuple(max(values) for values in zip(*of_devices, strict=True))

    divisions = itertools.combinations(begins, num_devices - 1)
    assert cost(_best_bounds(costs, begins)) == min(map(cost, divisions))


@pytest.mark.parametrize(
    ("split", "counts"), [((3, 1), [46, 15]), ((1, 1, 2), [15, 15, 31]), ((1, 1000), [1, 60]), ((1000, 1), [60, 1])]
)
def test_a_split_sets_the_ratio_of_layers(r1: GgufModel, split: tuple[int, ...], counts: list[int]) -> None:
    devices = [DeviceMemory(f"cuda:{number}", 24 * GIB, "") for number in range(len(split))]
    ranges = layer_ranges(r1, R1_SPEC, NUMBERS, devices, GpuExpertOptions(None), split)
    assert [len(own) for own in ranges] == counts


def test_no_device_begins_with_a_layer_that_uses_positions_of_the_layer_below(tmp_path: Path) -> None:
    spec = GLM52_SPEC
    gguf = open_gguf(write_hollow_model(tmp_path / "glm.gguf", spec, common_types(spec)))
    devices = [DeviceMemory(f"cuda:{number}", 80 * GIB, "") for number in range(8)]
    for split in (None, (1,) * 8):
        check_ranges(spec, layer_ranges(gguf, spec, NUMBERS, devices, GpuExpertOptions(None), split))


def test_more_devices_than_layers_are_rejected(r1: GgufModel) -> None:
    devices = [DeviceMemory(f"cuda:{number}", GIB, "") for number in range(R1_SPEC.num_layers + 1)]
    with pytest.raises(ConfigError, match=r"names 62 GPUs, and the model's 61 layers can be .* 61; name at most 61"):
        layer_ranges(r1, R1_SPEC, NUMBERS, devices, GpuExpertOptions(None))


def test_the_plan_of_a_configuration_divides_the_layers(r1: GgufModel) -> None:
    described = Described(host_memory=1024 * GIB)
    limits = 24 * GIB, 40 * GIB
    machine = MachineConfig(device="cuda:1,cuda:0", vram_limit=limits, cpu_threads=1)
    config = Config(model=ModelConfig(gguf_path=r1.path), scheduling=SchedulingConfig(), machine=machine)
    plan = plan_for(config, r1, R1_SPEC, described)
    check_memory(plan)
    assert [device.memory.name for device in plan.devices] == ["cuda:1", "cuda:0"]
    assert [device.memory.available_bytes for device in plan.devices] == list(limits)
    assert [len(device.layers) for device in plan.devices] == [31, 30], "layers 0 to 2 have no routed experts"
    text = render(plan)
    assert f"Memory of cuda:1, which computes layers 0 to {plan.devices[0].layers[-1]}\n" in text
    assert [each["layers"] for each in to_json(plan)["device"]["devices"]] == [
        [device.layers[0], device.layers[-1]] for device in plan.devices
    ]
    split = replace(config, machine=replace(machine, device_split=(3, 1)))
    assert [len(device.layers) for device in plan_for(split, r1, R1_SPEC, described).devices] == [46, 15]
    most = replace(config, machine=replace(machine, device_split=(60, 1)))
    assert "Memory of cuda:0, which computes layer 60\n" in render(plan_for(most, r1, R1_SPEC, described))


@pytest.mark.parametrize(("num_gpus", "most_tokens"), [(1, 4096), (2, 16384)])
def test_devices_with_all_experts_have_steps_of_several_parts(r1: GgufModel, num_gpus: int, most_tokens: int) -> None:
    """A single device computes a step as a whole."""
    names = ",".join(f"cuda:{number}" for number in range(num_gpus))
    machine = MachineConfig(device=names, vram_limit=(512 * GIB,) * num_gpus, cpu_threads=1)
    config = Config(model=ModelConfig(gguf_path=r1.path), scheduling=SchedulingConfig(), machine=machine)
    plan = plan_for(config, r1, R1_SPEC, Described(host_memory=1024 * GIB))
    check_memory(plan)
    assert plan.holds_all_experts
    assert plan.numbers.step_tokens == most_tokens
