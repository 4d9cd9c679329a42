"""Which routed experts are also in GPU memory: the choice, the plan that counts it, the options and rules that
ask for it, the profile that guides it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast._core import kernels
from ballast.config.options import Config, MachineConfig
from ballast.config.resolve import resolve
from ballast.errors import ConfigError, OutOfMemoryError
from ballast.host.machine import Memory
from ballast.model.metadata import read_spec
from ballast.model.modules import module_tree
from ballast.moe.device_rules import NO_RULES
from ballast.moe.gpu_experts import choose_gpu_experts
from ballast.moe.profile import ExpertProfile, fingerprint, read_profile, write_profile
from ballast.moe.rule_file import read_placement
from ballast.plan import check_memory, render, to_json
from ballast.plan.gpus.gpu_experts import UNSPENT_BYTES, GpuExpertOptions
from ballast.plan.gpus.hybrid import make_hybrid_plan
from ballast.plan.memory import DeviceMemory, MemoryPlan, Numbers
from ballast.weights.gguf import GgufModel, open_gguf
from devkit.models.gguf_files import common_types, write_hollow_model
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.written import write_tiny_model

GIB = 1 << 30
FAST = kernels.usable_isas()[0]
NUMBERS = Numbers(cache_lens=32768, block_tokens=32, max_batch_size=4, chunk_size=256, prefill_chunk_size=256, isa=FAST)
HOST = Memory(1024 * GIB, 512 * GIB, None)
LAYERS = len(R1_SPEC.routed_layers)


# --- the choice ---------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.integers(0, 400),
    most=st.none() | st.integers(0, 30),
    always=st.sets(st.integers(0, 3), max_size=1),
)
def test_the_experts_used_most_for_their_bytes_are_chosen(
    seed: int, capacity: int, most: int | None, always: set[int]
) -> None:
    rng = np.random.default_rng(seed)
    uses, sizes = rng.integers(0, 5, (4, 6)), rng.integers(1, 20, 4).tolist()
    never = {3} - always
    found = choose_gpu_experts(uses, sizes, capacity_bytes=capacity, most=most, always=always, never=never)
    chosen = {(layer, expert) for layer, ids in enumerate(found) for expert in ids}
    assert all(list(ids) == sorted(ids) for ids in found)
    assert all(len(found[layer]) == 6 for layer in always)
    assert all(not found[layer] for layer in never)
    optional = {place for place in chosen if place[0] not in always}
    forced_bytes = sum(6 * sizes[layer] for layer in always)
    assert sum(sizes[layer] for layer, _ in optional) <= max(0, capacity - forced_bytes)
    assert most is None or len(chosen) <= max(most, 6 * len(always))
    free = capacity - forced_bytes - sum(sizes[layer] for layer, _ in optional)
    if most is None or len(chosen) < most:
        for layer in set(range(4)) - always - never:
            assert len(found[layer]) == 6 or sizes[layer] > free, "all experts that fit are on the GPU"
    worth = {place: uses[place] / sizes[place[0]] for place in np.ndindex(4, 6)}
    for place in optional:
        for other in set(worth) - chosen:
            if other[0] not in never and sizes[other[0]] <= sizes[place[0]]:
                assert worth[place] >= worth[other], "nothing smaller was worth more"


def test_without_counts_layers_are_filled_one_after_the_other() -> None:
    found = choose_gpu_experts(np.zeros((3, 4), np.int64), [10, 10, 10], capacity_bytes=65)
    assert found == ((0, 1, 2, 3), (0, 1), ())


# --- the plan -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def r1(tmp_path_factory: pytest.TempPathFactory) -> GgufModel:
    file = tmp_path_factory.mktemp("r1") / "r1.gguf"
    return open_gguf(write_hollow_model(file, R1_SPEC, common_types(R1_SPEC)))


def r1_plan(r1: GgufModel, vram: int, wanted: GpuExpertOptions, rules: str = "", cache_lens: int = 32768) -> MemoryPlan:
    placement = NO_RULES
    if rules:
        file = r1.path.parent / "rules.yaml"
        file.write_text(rules)
        placement = read_placement(file, module_tree(R1_SPEC))
    numbers = replace(NUMBERS, cache_lens=cache_lens)
    devices = [DeviceMemory("cuda:0", vram, "the limit")]
    return make_hybrid_plan(r1, R1_SPEC, numbers, HOST, devices, wanted, placement=placement)


def gpu_expert_bytes(plan: MemoryPlan) -> int:
    assert plan.gpus is not None
    return sum(row.num_bytes for row in plan.devices[0].uses if row.name == "GPU experts")


def use(plan: MemoryPlan, name: str) -> int:
    assert plan.gpus is not None
    [found] = [row.num_bytes for row in plan.devices[0].uses if row.name == name]
    return found


def test_spare_memory_is_filled_with_experts_after_the_cache(r1: GgufModel) -> None:
    none, auto = (r1_plan(r1, 80 * GIB, GpuExpertOptions(most)) for most in (0, None))
    check_memory(auto)
    assert none.gpus is not None
    assert auto.gpus is not None
    assert none.gpu_experts == ((),) * LAYERS
    spare = 80 * GIB - none.gpus.needed_bytes - UNSPENT_BYTES
    one = auto.gpus.needed_bytes - none.gpus.needed_bytes
    assert one == gpu_expert_bytes(auto)
    assert spare - 40 * (1 << 20) < one <= spare, "an expert takes some 25 MiB"
    counts = to_json(auto)["device"]["resident_experts"]
    assert counts[0] == 256
    assert 0 < sum(counts) < 256 * LAYERS
    assert f"{sum(counts)} of {256 * LAYERS} routed experts, layer after layer" in render(auto)
    assert auto.gpus.max_cache_lens == none.gpus.max_cache_lens, "experts give way to a larger cache"
    larger = r1_plan(r1, 80 * GIB, GpuExpertOptions(None), cache_lens=4 * 32768)
    assert gpu_expert_bytes(larger) < gpu_expert_bytes(auto)


def test_the_host_keeps_no_copy_of_a_layer_entirely_on_the_gpu(r1: GgufModel) -> None:
    def routed_bytes(plan: MemoryPlan, device: str) -> int:
        return sum(row.num_bytes for row in plan.weights if row.group == "routed experts" and row.device == device)

    none, whole, some = (r1_plan(r1, 80 * GIB, GpuExpertOptions(most)) for most in (0, 256, 256 + 44))
    moved = routed_bytes(some, "cuda:0")
    assert routed_bytes(none, "cuda:0") == 0
    assert moved == routed_bytes(whole, "cuda:0") == gpu_expert_bytes(whole)
    assert routed_bytes(some, "cpu") + moved == routed_bytes(none, "cpu")
    (weights, work, _), (fewer_weights, more_work, _) = none.uses, some.uses
    assert weights.num_bytes - fewer_weights.num_bytes == moved
    assert more_work.num_bytes - work.num_bytes == moved, "on its way there while the model is loaded"
    assert use(some, "dense weights") == use(none, "dense weights")


def test_a_given_number_of_experts_is_used(r1: GgufModel) -> None:
    plan = r1_plan(r1, 80 * GIB, GpuExpertOptions(300))
    assert [len(ids) for ids in plan.gpu_experts[:3]] == [256, 44, 0]
    check_memory(plan)
    with pytest.raises(OutOfMemoryError, match=r"GPU experts \d+\.\d GiB"):
        check_memory(r1_plan(r1, 24 * GIB, GpuExpertOptions(5000)))


def test_a_profile_puts_the_experts_used_most_first(r1: GgufModel) -> None:
    uses = np.zeros((LAYERS, 256), np.int64)
    uses[:, 7], uses[30, 9] = 50, 20
    plan = r1_plan(r1, 80 * GIB, GpuExpertOptions(LAYERS + 1, uses))
    assert plan.gpu_experts[0] == plan.gpu_experts[57] == (7,)
    assert plan.gpu_experts[30] == (7, 9)
    assert "by the profile" in render(plan)


def test_experts_that_follow_use_are_spread_over_all_layers_and_kept_in_host_memory(r1: GgufModel) -> None:
    stays, follows = (
        r1_plan(r1, 80 * GIB, GpuExpertOptions(LAYERS * 20, updates=updates)) for updates in (False, True)
    )
    assert [len(ids) for ids in follows.gpu_experts] == [20] * LAYERS
    assert follows.updates_gpu_experts
    assert "which follow use" in render(follows)
    assert not stays.updates_gpu_experts
    assert [len(ids) for ids in stays.gpu_experts[:5]] == [256, 256, 256, 256, 136]
    whole = 4 * 256 * gpu_expert_bytes(follows) // (LAYERS * 20)
    assert follows.uses[0].num_bytes - stays.uses[0].num_bytes == pytest.approx(whole, rel=0.01)
    uses = np.zeros((LAYERS, 256), np.int64)
    uses[0, 100:120] = 5
    by_use = r1_plan(r1, 80 * GIB, GpuExpertOptions(20, uses, updates=True))
    assert by_use.gpu_experts[0] == tuple(range(100, 120))
    assert by_use.expert_uses is uses


def test_passes_copy_no_expert_that_is_in_gpu_memory(r1: GgufModel) -> None:
    numbers = replace(NUMBERS, prefill_chunk_size=4096, streams_experts=True)
    devices, memory = [DeviceMemory("cuda:0", 900 * GIB, "the limit")], Memory(1024 * GIB, 1024 * GIB, None)

    def pass_bytes(options: GpuExpertOptions) -> int:
        gpus = make_hybrid_plan(r1, R1_SPEC, numbers, memory, devices, options).gpus
        assert gpus is not None
        assert gpus.streaming is not None
        return gpus.streaming.pass_bytes

    whole = pass_bytes(GpuExpertOptions(0))
    for updates in (False, True):  # whole layers, and some experts of each
        found = pass_bytes(GpuExpertOptions(LAYERS * 64, updates=updates))
        assert found == pytest.approx(0.75 * whole, rel=0.02)


def test_rules_may_name_the_layers(r1: GgufModel) -> None:
    rules = r"""
- match: {name: '^model\.layers\.(3|9)\.mlp\.experts$'}
  replace: {kwargs: {generate_device: cuda}}
- match: {name: '^model\.layers\.4\.mlp\.experts$'}
  replace: {kwargs: {generate_device: cpu}}
"""
    plan = r1_plan(r1, 80 * GIB, GpuExpertOptions(None), rules)
    counts = [len(ids) for ids in plan.gpu_experts]
    assert counts[0] == counts[6] == 256
    assert counts[1] == 0
    assert counts[2] == 256
    assert not any("otherwise" in note for note in plan.placement.notes)
    assert [len(ids) for ids in r1_plan(r1, 80 * GIB, GpuExpertOptions(0), rules).gpu_experts[:3]] == [256, 0, 0]


def test_the_plan_shows_the_share_that_crosses_pcie(r1: GgufModel) -> None:
    assert "across PCIe" not in render(r1_plan(r1, 24 * GIB, GpuExpertOptions(0, None, 0.0)))
    given_share = r1_plan(r1, 24 * GIB, GpuExpertOptions(0, None, 0.3))
    assert "The GPU reads 0.3 of a step" in render(given_share)
    assert to_json(given_share)["device"]["pcie_share"] == 0.3
    estimated = to_json(r1_plan(r1, 24 * GIB, GpuExpertOptions(0, None, None)))["device"]["pcie_share"]
    assert 0 < estimated <= 0.4


# --- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_experts": -1}, "gpu_experts=-1: must be auto, or a whole number, at least 0"),
        ({"pcie_share": 1.5}, r"pcie_share=1\.5: must be auto, or a number from 0 to 1"),
        (
            {"gpu_experts": 5, "device": "cpu"},
            "gpu_experts=5: is about experts in a GPU's memory, and device=cpu uses no GPU",
        ),
        ({"gpu_experts_update": 3}, "gpu_experts_update=3: must be on or off"),
        (
            {"gpu_experts_update": True, "device": "cpu"},
            "gpu_experts_update=on: is about experts in a GPU's memory, and device=cpu uses no GPU",
        ),
        (
            {"gpu_experts_update": True, "gpu_experts": 0, "device": "cuda:0"},
            "gpu_experts_update=on: moves experts in a GPU's memory, and gpu_experts=0 keeps none there",
        ),
        (
            {"pcie_share": 0.2, "device": "cpu"},
            r"pcie_share=0\.2: is about experts that a GPU reads, and device=cpu uses no GPU",
        ),
        (
            {"expert_profile": Path("none.json"), "device": "cpu"},
            "places experts in a GPU's memory, and device=cpu uses no GPU",
        ),
        ({"expert_profile": Path("none.json"), "device": "cuda"}, r"no such file; create it with `ballast profile`"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(Config(machine=MachineConfig(**options)), 1)


# --- the profile --------------------------------------------------------------------------------------------------


def test_a_profile_is_accepted_only_for_its_model(tmp_path: Path) -> None:
    gguf, again, other = (
        open_gguf(write_tiny_model(tmp_path / name, arch="v3", quant=quant, seed=seed).gguf)
        for name, quant, seed in (("a", "q8_0", 0), ("b", "q4_k", 0), ("c", "q8_0", 1))
    )
    spec = read_spec(gguf, None)
    shape = (len(spec.routed_layers), spec.routing.num_experts)
    uses = np.arange(shape[0] * shape[1]).reshape(shape)
    file = tmp_path / "profile.json"
    write_profile(file, ExpertProfile(spec.name, fingerprint(gguf), 123, uses))
    for model in (gguf, again):
        found = read_profile(file, model, spec.name, *shape)
        assert found.num_tokens == 123
        assert found.uses.tolist() == uses.tolist()
    with pytest.raises(ConfigError, match=f"is the profile of another model, {spec.name}; create one for Other"):
        read_profile(file, other, "Other", *shape)
    with pytest.raises(ConfigError, match="is the profile of another model"):
        read_profile(file, gguf, spec.name, shape[0] + 1, shape[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a profile that `ballast profile` wrote: expected a JSON object, found list"),
        ("[" * 100_000, "is not a profile that `ballast profile` wrote: is not JSON"),
        ('{"model": "m"}', "is not a profile that `ballast profile` wrote: fingerprint is missing"),
        ('{"model": "m", "fingerprint": "f", "num_tokens": 1, "uses": [[1], [1, 2]]}', "uses has layers of unequal"),
        (
            '{"model": "m", "fingerprint": "f", "num_tokens": 1, "uses": [[-1]]}',
            r"uses\.0\.0=-1: input should be great",
        ),
        ('{"model": "m", "fingerprint": "f", "num_tokens": 1, "uses": [[1e400]]}', r"uses\.0\.0=inf: "),
    ],
)
def test_an_invalid_profile_is_rejected(tmp_path: Path, r1: GgufModel, text: str, message: str) -> None:
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_profile(file, r1, "m", 1, 1)
