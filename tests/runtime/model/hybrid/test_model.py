"""The hybrid model's logits compared with the C++ model's on the same file, token by token, through the real scheduler.

On the CPU, dense weights and cache are float32: the remaining differences are the rounding of activations to two bytes
in the C++ model's linear layers (decision 80) and the order of sums. On a GPU, the model runs as it is served: packed
weights, cache in half precision. It is judged by divergence with the same selected experts (decision 42), because one
different expert changes all later results.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from gguf import GGMLQuantizationType, GGUFReader

from ballast._core import kernels
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import DeviceSettings, EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.engine.startup.step_costs import with_measured_costs
from ballast.errors import EngineDeadError, OutOfMemoryError
from ballast.host.gpu import taken_vram
from ballast.host.startup.measurements import Measurements
from ballast.host.startup.start import Start
from ballast.host.vram import VramLimit
from ballast.model.batch import Batch, padding
from ballast.model.hybrid.attention import attention
from ballast.model.hybrid.attention.attention import PlainAttention
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.experts.device_layers import WholeLayers
from ballast.model.hybrid.graphs.decode_inputs import DecodeInputs
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.load_stages import weights
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import ExpertUnit
from ballast.model.hybrid.startup.pcie_share import SHARES, kept_share
from ballast.model.hybrid.steps.step import Step
from ballast.model.hybrid.streaming.joint_split import JointSplit
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.metadata import read_spec
from ballast.model.packed_tensors import Packing, Tensors
from ballast.model.runner import Runner
from ballast.moe.gpu_experts import GpuExperts
from ballast.tiny import model as tiny_model
from ballast.tiny import write_tiny_model
from ballast.tiny.quant_mix import QUANTS, types_for
from ballast.weights.gguf import open_gguf
from devkit.generate import generate
from devkit.kernels.attention_cases import attention_case
from devkit.long import if_long, spread
from devkit.models.cpu_backend import copied
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.random_blocks import dequantized
from devkit.models.written import MakeTiny
from devkit.oracles.divergence import divergences, log_probabilities
from devkit.oracles.forced_positions import ForcedPositions
from devkit.oracles.forced_routing import ForcedRouting

MAX_RELATIVE_ERROR = 1e-3
MAX_DIVERGENCE = 5e-5
"""Maximum divergence if both models select the same experts. Half precision in the cache and in attention leaves 1e-6
to 5e-6, bfloat16 about 8e-5."""
MIN_SAME_TOP = 0.98
MAX_DIVERGENCE_OF_8_BITS = {"qwen3": 0.02, "gptoss": 0.04, "mimov2": 0.08, "qwen3next": 1e-3, "v3": 0.3}
"""As MAX_DIVERGENCE, for a cache of 8 bits; 2.5 to 7 times what was found. Rounding errors are 32 times those of
bfloat16, and divergence grows with their squares. These models are random and react more than trained ones."""
MIN_SAME_TOP_OF_8_BITS = 0.85
MAX_DIFFERENT_EXPERTS = 0.003
"""Maximum fraction of different expert selections. Half precision in the cache changes 0.0013, bfloat16 0.004."""
MAX_DIFFERENT_POSITIONS = 0.05
"""Maximum fraction of different positions per token and layer. Half precision in the cache changes 0.01."""
CPU = torch.device("cpu")
GPU = torch.device("cuda:0")
WINDOWED = ("gptoss", "step35", "mimov2", "laguna")
"""Architectures in which some layers have windows: with sinks, biases and another unit; with gates, clamps, and heads
and rotations that differ by layer; with keys and values of different widths, scaled values and fused matrices; with
other gates and heads by layer."""
GROUPED = ("qwen3", "glm45", "glm45air", "minimaxm2", "lagunam1", "hy3", "dots1", *WINDOWED)
"""Architectures with grouped-query attention: without norm, bias and unrotated entries; with all; with all except the
norm of heads; with one norm over all heads of a token; with gates of entries; with routing of other kinds; and those
with windows."""
RECURRENT = ("qwen3next", "qwen35", "kimilinear", "glm53flash", "qwen38flashnext")
"""Architectures with recurrent layers. The first two have gated queries and a gate of shared experts, and heads that
share a key: neighbouring heads, and alternating ones. In the others, each row of a state has a decay, and latent
attention rotates nothing. The fourth one has hyper-connections, and positions that are selected by pools of 4. The last
one selects such pools for grouped-query attention, reads gated rows, and embeds n-grams."""
SPARSE = ("v32", "glm5")
"""Architectures whose tokens attend to 32 positions that an indexer selects: in every layer, and shared by some
layers."""
LATENT = ("v2lite", "v2", "v3", "k2")
SCALED = ("mistral4", "mistrallarge3")
"""Architectures whose queries are scaled by position."""
SETTINGS = EngineSettings(
    cache_lens=512,
    max_batch_size=4,
    max_new_tokens=16,
    chunk_size=24,
    prefill_chunk_size=48,
    max_queue=8,
    block_tokens=16,
    activation_bytes=2,
    state_snapshots=8,
)


class Pair(Runner):
    """Runs every step through both models, requests the logits of every token, and stores their differences."""

    def __init__(self, first: Runner, second: Runner) -> None:
        self._both = first, second
        self.second = second
        assert (first.window is None) == (second.window is None)
        if first.window is not None and second.window is not None:
            self.window = min(first.window, second.window)
        assert first.state_slots == second.state_slots
        self.state_slots = first.state_slots
        self.largest_error = 0.0
        self.divergences: list[float] = []
        self.same_top: list[bool] = []
        self.most_at_once = 0
        """Maximum number of requests in a decode-only step."""

    def forget(self) -> None:
        self.largest_error = 0.0
        self.divergences.clear()
        self.same_top.clear()
        self.most_at_once = 0

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        everything = replace(batch, sampled=np.arange(batch.token_ids.size, dtype=np.int64))
        ours, theirs = (runner.forward(everything, alive) for runner in reversed(self._both))
        self.largest_error = max(self.largest_error, float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
        self.same_top += (ours.argmax(1) == theirs.argmax(1)).tolist()
        if batch.is_decode:
            self.most_at_once = max(self.most_at_once, batch.token_ids.size)
        self.divergences += divergences(log_probabilities(theirs), log_probabilities(ours)).tolist()
        return theirs[batch.sampled]


@pytest.fixture
def expected_warnings() -> list[str]:
    """The messages of warnings and errors that a test on a GPU expects, in order; the test fills the list."""
    return []


@pytest.fixture(autouse=True)
def nothing_falls_back(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, expected_warnings: list[str]
) -> Iterator[None]:
    """On a GPU, the model must use all intended implementations: it logs a warning if one is switched off."""
    yield
    if request.node.get_closest_marker("gpu") or request.node.get_closest_marker("gpu2"):
        reported = [record for record in caplog.get_records("call") if record.name.startswith("ballast.model.hybrid")]
        reported = [record for record in reported if record.levelno >= logging.WARNING]
        assert [record.getMessage() for record in reported] == expected_warnings, [vars(record) for record in reported]


def load(file: Path, device: torch.device, settings: EngineSettings = SETTINGS, **options: object) -> HybridModel:
    return load_hybrid(file, device, settings, keeps_windows=True, **options)


def as_served(file: Path, device: str, vram: VramLimit | None = None, settings: EngineSettings = SETTINGS) -> Runner:
    gguf_model = open_gguf(file)
    spec = read_spec(gguf_model, None)
    devices = () if device == "cpu" else (DeviceSettings(device, range(spec.num_layers), vram),)
    return load_runner(gguf_model, spec, spec.vocab_size, replace(settings, devices=devices))


def pair_on_cpu(file: Path) -> Pair:
    return Pair(as_served(file, "cpu"), load(file, CPU, kv_dtype=torch.float32))


class LedPair(Pair):
    """A model in float32 and one in lower precision; the first uses the second's selections of experts and of
    positions."""

    def __init__(self, file: Path, forced_by: HybridModel, settings: EngineSettings = SETTINGS) -> None:
        follower = load(file, CPU, settings, kv_dtype=torch.float32)
        self.routing = ForcedRouting(forced_by, follower, settings.prefill_chunk_size)
        spec = forced_by._spec
        is_sparse = any(isinstance(each, CompressedSpec) and each.index for each in spec.mixers) or bool(spec.choices)
        self.positions = ForcedPositions(forced_by, follower, settings.prefill_chunk_size) if is_sparse else None
        super().__init__(follower, forced_by)

    def check(self) -> None:
        assert self.routing.num_choices >= len(self.divergences) * self.routing.num_layers
        assert self.routing.num_refused == 0
        if self.positions is not None:
            assert self.positions.num_choices > 0
            assert self.positions.num_refused == 0
            assert self.positions.num_differing <= MAX_DIFFERENT_POSITIONS * self.positions.num_choices
        assert np.mean(self.divergences) <= MAX_DIVERGENCE
        assert np.mean(self.same_top) >= MIN_SAME_TOP


def pair_on_gpu(file: Path, settings: EngineSettings = SETTINGS, **options: object) -> LedPair:
    """Steps are captured after the selections are forced, so that captured steps also record theirs."""
    hybrid = load(file, GPU, settings, decodes_by_graphs=False, **options)
    pair = LedPair(file, hybrid, settings)
    hybrid.capture_decode(lambda share: None)
    return pair


def run_requests(pair: Pair) -> None:
    """Run prompts of several chunks that decode together, two of which share a prefix; then one that the cache
    serves."""
    rng = np.random.default_rng(5)
    prompts = [tuple(rng.integers(0, 300, length).tolist()) for length in (50, 5, 23)]
    prompts.append(prompts[0][:32] + prompts[1])
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    requests = [Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)]
    core = EngineCore(pair, scheduler_config(SETTINGS))
    first, *_ = generate(core, requests)
    (again,) = generate(core, requests[:1], first_seq=10)
    assert again.token_ids == first.token_ids
    assert again.cached_tokens >= 32, "the second pass is served from the cache that the first one wrote"
    assert len(pair.same_top) > 100


def run_long_prompts(pair: Pair, settings: EngineSettings) -> None:
    rng = np.random.default_rng(11)
    prompts = [tuple(rng.integers(0, 300, 250).tolist()) for _ in range(2)]
    sampling = SamplingParams(max_tokens=2, temperature=0.0)
    requests = [Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)]
    generate(EngineCore(pair, scheduler_config(settings)), requests)


@pytest.mark.parametrize(
    ("arch", "mla", "quant"),
    [
        *(case.values for case in spread((*LATENT, *SCALED), ("split", "joint"), ("q4_k",))),
        *(("v3", "split", quant) for quant in ("bf16", "q8_0", *if_long("f32", "q6_k", "iq4_xs"))),
        *((arch, mla, "nvfp4") for arch, mla in (("v2", "split"), *if_long(("v2lite", "joint"), ("glm45", "split")))),
        *((arch, "split", "q4_k") for arch in (*GROUPED, *SPARSE)),
        # One model converts every matrix to float32. How the other computes each type has tests of its own.
        *((arch, "split", "f32") for arch in ("gptoss", *if_long("qwen3", "glm5"))),
        # With rounded activations, near ties between their experts are decided otherwise.
        *((arch, "split", "f32") for arch in (*RECURRENT, "v4")),
        *if_long(*((arch, "split", quant) for arch in (*GROUPED, *SPARSE) for quant in ("f32", "q8_0"))),
        ("gptoss", "split", "mxfp4"),
    ],
)
def test_logits_agree_with_the_cpu_model_in_every_architecture(
    written: MakeTiny, arch: str, mla: str, quant: str
) -> None:
    pair = pair_on_cpu(written(arch=arch, mla=mla, quant=quant).gguf)
    run_requests(pair)
    assert pair.largest_error <= MAX_RELATIVE_ERROR


def test_the_head_weights_of_an_indexer_are_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tiny_model,
        "types_for",
        lambda *args: {
            name: GGMLQuantizationType.NVFP4 if name.endswith("indexer.proj.weight") else kind
            for name, kind in types_for(*args).items()
        },
    )
    file = write_tiny_model(tmp_path, arch="v32", quant="nvfp4").gguf
    hybrid = load(file, CPU)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(file).tensors}
    name = "blk.0.indexer.proj"
    whole = dequantized(tensors[f"{name}.weight"], GGMLQuantizationType.NVFP4) * tensors[f"{name}.scale"]
    indexer = hybrid.layers.weights.layers[0].attention.indexer
    found = indexer.head_weights(torch.eye(whole.shape[1])).T
    np.testing.assert_allclose(found.numpy(), whole, rtol=1e-6)


def test_matrices_of_one_input_are_stacked_if_types_and_widths_match(written: MakeTiny) -> None:
    file = written(arch="v3", mla="split", quant="q4_k").gguf
    tensors = Tensors(open_gguf(file), Packing(kernels.ThreadPool(1), SETTINGS.cpu_isa, 2))
    gate, up, down = (f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down"))
    assert not tensors.are_stackable((gate, down))
    assert tensors.are_stackable((gate, up))
    apart = [kernels.unpack(tensors.matrix(name)) for name in (gate, up)]
    np.testing.assert_array_equal(kernels.unpack(tensors.stacked((gate, up))), np.concatenate(apart, 1))


def test_logits_agree_if_matrices_of_one_input_have_different_types(written: MakeTiny, monkeypatch) -> None:
    monkeypatch.setattr(Tensors, "are_stackable", lambda self, names: False)
    pair = pair_on_cpu(written(arch="v3", mla="split", quant="q4_k").gguf)
    run_requests(pair)
    assert pair.largest_error <= MAX_RELATIVE_ERROR


def test_logits_agree_if_values_have_another_type(written: MakeTiny, monkeypatch) -> None:
    monkeypatch.setattr(Tensors, "are_stackable", lambda self, names: not any("attn_v" in name for name in names))
    stacked, stack = [], Tensors.stacked
    monkeypatch.setattr(Tensors, "stacked", lambda self, names: (stacked.append(len(names)), stack(self, names))[1])
    pair = pair_on_cpu(written(arch="glm45", quant="q4_k").gguf)
    assert set(stacked) == {2}, "queries and keys; gate and up"
    run_requests(pair)
    assert pair.largest_error <= MAX_RELATIVE_ERROR


def gpu_experts_of(file: Path) -> dict[str, GpuExperts]:
    """Experts on the device: none; some, including one whole layer; all."""
    spec = read_spec(open_gguf(file), None)
    whole, num_layers = tuple(range(spec.routing.num_experts)), len(spec.routed_layers)
    return {
        "share": (),
        "some": (whole, *(whole[1::3] for _ in range(num_layers - 1))),
        "all": (whole,) * num_layers,
    }


@pytest.mark.parametrize(("arch", "stream_from_tokens"), spread(["v3", "gptoss"], [0, 20]))
def test_logits_agree_while_experts_move(
    written: MakeTiny, arch: str, stream_from_tokens: int, experts_move_randomly: None
) -> None:
    file = written(arch=arch, mla="split", quant="f32").gguf
    hybrid = load(
        file,
        CPU,
        kv_dtype=torch.float32,
        make_experts=FloatExperts,
        stream_from_tokens=stream_from_tokens,
        gpu_experts=gpu_experts_of(file)["some"],
        updates_gpu_experts=True,
        pcie_share=0.4,
    )
    pair = Pair(as_served(file, "cpu"), hybrid)
    for _ in range(3):
        if hybrid.streamed is not None:  # what a pass does not copy must not be used
            [part] = hybrid.streamed._parts
            part.experts._buffers.fill_(0xFF)
        run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    run_requests(pair)
    [numbers] = hybrid.device_counts.devices
    assert numbers.moved_experts > 20
    assert 0 < numbers.expert_hits < numbers.expert_selections
    assert pair.largest_error <= MAX_RELATIVE_ERROR


def test_steps_that_are_measured_at_start_do_not_count_as_use(written: MakeTiny) -> None:
    """They have random tokens, of which there are as many as the counters remember."""
    file = written(arch="v3", mla="split", quant="f32").gguf
    hybrid = load(
        file,
        CPU,
        kv_dtype=torch.float32,
        make_experts=FloatExperts,
        gpu_experts=gpu_experts_of(file)["some"],
        updates_gpu_experts=True,
    )
    with_measured_costs(scheduler_config(SETTINGS), hybrid, 64, lambda: None)
    heat = hybrid.expert_heat()
    assert heat is not None
    assert not heat.any()
    assert not any(cache.uses.any() for cache in hybrid._experts._caches)
    run_requests(Pair(as_served(file, "cpu"), hybrid))
    heat = hybrid.expert_heat()
    assert heat is not None
    assert heat.any()


@pytest.mark.parametrize(
    ("arch", "divided", "stream_from_tokens"),
    spread(["v3", "qwen3", "gptoss", "step35"], ["share", "some", "all"], [0, 20]),
)
def test_logits_agree_for_every_division_of_experts(
    written: MakeTiny, arch: str, divided: str, stream_from_tokens: int
) -> None:
    file = written(arch=arch, mla="split", quant="f32").gguf
    hybrid = load(
        file,
        CPU,
        kv_dtype=torch.float32,
        make_experts=FloatExperts,
        stream_from_tokens=stream_from_tokens,
        gpu_experts=gpu_experts_of(file)[divided],
        pcie_share=0.4,
    )
    assert hybrid.long_steps_pay == (divided == "all" or stream_from_tokens > 0)
    pair = Pair(as_served(file, "cpu"), hybrid)
    run_requests(pair)
    assert pair.largest_error <= MAX_RELATIVE_ERROR
    assert (hybrid.expert_bytes_read_over_pcie > 0) == (divided != "all")
    assert (hybrid.expert_bytes_read > hybrid.expert_bytes_read_over_pcie) == (divided != "all")


LONG = replace(SETTINGS, chunk_size=512, prefill_chunk_size=512)


def test_a_half_precision_cache_changes_only_near_ties(written: MakeTiny) -> None:
    differing = total = 0
    for arch in ("v2lite", "v2", "v3", "k2"):
        file = written(arch=arch, quant="q4_k").gguf
        pair = LedPair(file, load(file, CPU, LONG), LONG)
        run_long_prompts(pair, LONG)
        pair.check()
        differing += pair.routing.num_differing
        total += pair.routing.num_choices
    assert total > 5000
    assert 0 < differing <= MAX_DIFFERENT_EXPERTS * total


@pytest.mark.parametrize("arch", ["v32", "glm53flash", "v4", *if_long("glm5", "qwen38flashnext")])
def test_a_half_precision_cache_changes_only_near_ties_of_positions(written: MakeTiny, arch: str) -> None:
    file = written(arch=arch, quant="q4_k").gguf
    pair = LedPair(file, load(file, CPU, LONG), LONG)
    run_long_prompts(pair, LONG)
    pair.check()
    assert pair.positions is not None
    assert pair.positions.num_differing > 0


def test_only_near_ties_are_forced(written: MakeTiny) -> None:
    file = written(arch="v3", quant="q4_k").gguf
    wrong = load(file, CPU, LONG)
    biases = [layer.routed.choose._bias for layer in wrong.layers.weights.layers if layer.routed is not None]
    biases[1][3] += 0.05
    pair = LedPair(file, wrong, LONG)
    run_long_prompts(pair, LONG)
    assert pair.routing.num_refused > 5
    assert np.mean(pair.divergences) > MAX_DIVERGENCE


def test_numbers_too_large_for_the_cache_are_clamped_counted_and_logged(
    written: MakeTiny, caplog: pytest.LogCaptureFixture
) -> None:
    hybrid = load(written(arch="v3", quant="f32").gguf, CPU)
    assert hybrid.device_counts.saturated_numbers == 0
    hybrid.layers.weights.layers[0].attention.kv_a_norm[:2] = 1e6
    batch = padding(3, SETTINGS.block_tokens)
    caplog.clear()
    for step in (1, 2):
        assert np.isfinite(hybrid.forward(batch, lambda: None)).all()
        assert 3 * step <= hybrid.device_counts.saturated_numbers <= 6 * step
    [record] = caplog.records
    assert (record.levelname, vars(record)["largest"]) == ("WARNING", 65504.0)


@pytest.mark.parametrize("is_right", [True, False])
def test_the_host_keeps_no_copy_of_a_layer_that_the_device_computes_correctly(
    written: MakeTiny, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    gpu_experts, seen = gpu_experts_of(file)["some"], []

    def make(*stacks: PanelStack, unit: ExpertUnit) -> GroupedExperts:
        experts = FloatExperts(*stacks, unit=unit)
        return experts if is_right else lambda *arguments: 2 * experts(*arguments)

    class Watched(WholeLayers):
        def take(self, index: int, experts: kernels.Experts) -> bool:
            seen.append(weakref.ref(experts))
            return super().take(index, experts)

    monkeypatch.setattr(weights, "WholeLayers", Watched)
    hybrid = load(file, CPU, kv_dtype=torch.float32, make_experts=make, gpu_experts=gpu_experts)
    gc.collect()
    is_gone = [experts() is None for experts in seen]
    assert is_gone == [is_right, *[False] * (len(gpu_experts) - 1)]
    assert hybrid.expert_uses.shape[0] == len(gpu_experts)
    assert hybrid.device_counts.gpu_experts == (sum(map(len, gpu_experts)) if is_right else 0)
    assert ("gpu_experts" in hybrid.device_counts.switched_off) != is_right
    pair = Pair(as_served(file, "cpu"), hybrid)
    run_requests(pair)
    assert pair.largest_error <= MAX_RELATIVE_ERROR


@pytest.mark.gpu
def test_a_too_low_gpu_limit_is_reported_with_limit_and_use(written: MakeTiny, expected_warnings: list[str]) -> None:
    expected_warnings.append("loading failed")
    file = written(arch="v3", mla="split", quant="q4_k").gguf
    gc.collect()
    torch.cuda.empty_cache()
    _, taken = taken_vram("cuda:0")
    limit = VramLimit(taken + (513 << 20), 512 << 20)
    try:
        with pytest.raises(OutOfMemoryError, match=r"cuda:0 is full: .* more wanted, torch uses .* and may use"):
            as_served(file, "cuda:0", vram=limit)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_share_is_measured_on_the_loaded_model(written: MakeTiny, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = written(arch="v3", mla="split", quant="f32").gguf
    hybrid = load(file, CPU, make_experts=FloatExperts, pcie_share=None)
    [record] = [record for record in caplog.records if record.message == "PCIe share measured"]
    assert hybrid.device_counts.pcie_share == vars(record)["share"] in (0.0, *SHARES)
    assert len(vars(record)["ms_with"]) == 2, "for one request and for four"
    assert vars(record)["layers"] == sum(layer.routed is not None for layer in hybrid.layers.weights.layers)


def test_a_later_start_uses_the_share_of_an_earlier_one(
    written: MakeTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf

    def start() -> Start:
        record = Start(Measurements(tmp_path, {}))
        options = {"make_experts": FloatExperts, "pcie_share": None, "start": record}
        assert load(file, CPU, **options).device_counts.pcie_share == SHARES[1]
        return record

    monkeypatch.setattr("ballast.model.hybrid.load_stages.experts.measured_share", lambda *_: SHARES[1])
    assert start().measurements.reused == []
    monkeypatch.setattr(
        "ballast.model.hybrid.load_stages.experts.measured_share", lambda *_: pytest.fail("measured again")
    )
    again = start()
    assert again.measurements.reused == ["pcie_share"]
    assert again.times.seconds()["weights"] > 0


@pytest.mark.parametrize("value", [0.5, True, "0.25", None, [0.25]])
def test_a_stored_share_must_be_a_candidate(value: object) -> None:
    assert [kept_share(share) for share in (0, *SHARES)] == [0.0, *SHARES]
    with pytest.raises(ValueError, match="not a candidate fraction"):
        kept_share(value)


def test_an_error_in_the_measurement_of_the_share_ends_the_start(
    written: MakeTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise EngineDeadError("a stream memory operation of CUDA's driver failed with code 801")

    monkeypatch.setattr(HostExperts, "submit", refused)
    file = written(arch="v3", mla="split", quant="f32").gguf
    with pytest.raises(EngineDeadError, match="801"):
        load(file, CPU, make_experts=FloatExperts, pcie_share=None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arch", "mla", "quant"),
    [
        *((arch, mla, quant) for quant in QUANTS for arch, mla in (("v3", "split"), ("v2lite", "joint"))),
        *(
            (arch, mla, "q4_k_m")
            for arch in (*LATENT, *SCALED)
            for mla in ("split", "joint")
            if (arch, mla) not in {("v3", "split"), ("v2lite", "joint")}
        ),
        *(
            (arch, "split", quant)
            for arch in (*GROUPED, *RECURRENT[:2], *SPARSE)
            for quant in ("f32", "bf16", "q8_0", "q4_k_m")
        ),
        *((arch, "split", quant) for arch in RECURRENT[2:] for quant in ("f32", "q4_k_m")),
        ("gptoss", "split", "mxfp4"),
        ("mimov2", "split", "nvfp4"),
    ],
)
def test_distributions_on_a_gpu_agree_with_float32(written: MakeTiny, arch: str, mla: str, quant: str) -> None:
    file = written(arch=arch, mla=mla, quant=quant).gguf
    pair = pair_on_gpu(file)
    run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    pair.check()


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("arch", list(MAX_DIVERGENCE_OF_8_BITS))
def test_a_cache_of_8_bits_changes_distributions_little(written: MakeTiny, arch: str, device: torch.device) -> None:
    """Prompts, decode steps, prefix hits, and graphs on a GPU."""
    file = written(arch=arch, mla="split", quant="q8_0").gguf
    short: dict[str, Any] = {"kv_dtype": torch.float8_e4m3fn}
    pair = LedPair(file, load(file, CPU, **short)) if device == CPU else pair_on_gpu(file, **short)
    check_cache_of_8_bits(pair, arch)


def check_cache_of_8_bits(pair: LedPair, arch: str) -> None:
    assert isinstance(pair.second, HybridModel)
    assert {tensor.dtype for tensor in pair.second.kv_tensors} == {torch.uint8}
    run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    assert 1e-6 < np.mean(pair.divergences) <= MAX_DIVERGENCE_OF_8_BITS[arch]
    assert np.mean(pair.same_top) >= MIN_SAME_TOP_OF_8_BITS


def run_conversations(pair: Pair, settings: EngineSettings) -> None:
    """Two turns of conversations with a common beginning, which preempt each other and begin from snapshots."""
    rng = np.random.default_rng(7)
    beginning = rng.integers(0, 300, 40).tolist()
    said = [beginning + rng.integers(0, 300, length).tolist() for length in (70, 6, 30, 45)]
    core = EngineCore(pair, scheduler_config(settings))
    for turn in range(2):
        sampling = SamplingParams(max_tokens=16, temperature=0.0)
        requests = [Request(f"{turn}.{index}", tuple(text), sampling) for index, text in enumerate(said)]
        for text, reply in zip(said, generate(core, requests, first_seq=1 + 10 * turn), strict=True):
            text += [*reply.token_ids, *rng.integers(0, 300, 5).tolist()]
    core.check()
    assert core.stats().preemptions > 0
    assert core.stats().prefix_hit_tokens > 0
    assert core.stats().snapshots > 0


SCARCE = replace(SETTINGS, cache_lens=208)
"""Few blocks, so that requests preempt each other."""


@pytest.mark.parametrize("arch", ["qwen3next", "glm53flash", "qwen38flashnext", "v4", *if_long("qwen35", "kimilinear")])
def test_states_agree_after_snapshots_and_preemption(written: MakeTiny, arch: str) -> None:
    file = written(arch=arch, mla="split", quant="f32").gguf
    pair = Pair(as_served(file, "cpu", settings=SCARCE), load(file, CPU, SCARCE, kv_dtype=torch.float32))
    run_conversations(pair, SCARCE)
    assert pair.largest_error <= MAX_RELATIVE_ERROR


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"stream_from_tokens": 2}])
@pytest.mark.parametrize(
    ("arch", "quant"),
    [
        *(("qwen3next", "q4_k"), ("qwen35", "q8_0"), ("kimilinear", "q4_k"), ("glm53flash", "q4_k")),
        *(("qwen38flashnext", "q8_0"), ("v4", "q4_k")),
    ],
)
def test_states_on_a_gpu_agree_after_snapshots_and_preemption(
    written: MakeTiny, arch: str, quant: str, options: dict[str, int]
) -> None:
    pair = pair_on_gpu(written(arch=arch, mla="split", quant=quant).gguf, SCARCE, **options)
    run_conversations(pair, SCARCE)
    pair.check()


@pytest.mark.gpu
@pytest.mark.parametrize("arch", [*RECURRENT, "v4"])
def test_captured_steps_leave_the_states_of_queued_ones(written: MakeTiny, arch: str) -> None:
    """In one model: another start could choose other matrix kernels, whose sums are rounded differently."""
    model = load(written(arch=arch, mla="split", quant="q8_0").gguf, GPU, decodes_by_graphs=False)
    states = [tensor for layer in model.devices[0].states.layers if layer is not None for tensor in layer]

    def texts() -> list[list[int]]:
        rng, core = np.random.default_rng(9), EngineCore(model, scheduler_config(SETTINGS))
        prompts = [tuple(rng.integers(0, 300, length).tolist()) for length in (40, 3, 17)]
        greedy = SamplingParams(max_tokens=16, temperature=0.0)
        requests = [Request(str(seq), prompt, greedy) for seq, prompt in enumerate(prompts, 1)]
        return [generate(core, [each], first_seq=seq)[0].token_ids for seq, each in enumerate(requests, 1)]

    queued = texts(), [tensor.cpu() for tensor in states]
    for tensor in states:
        tensor.zero_()
    model.capture_decode(lambda share: None)
    assert model.device_counts.decode_graphs > 0
    assert texts() == queued[0]
    for tensor, expected in zip(states, queued[1], strict=True):
        torch.testing.assert_close(tensor[1:].cpu(), expected[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arch", "mla", "quant"),
    [
        ("v3", "split", "q4_k"),
        ("v2lite", "joint", "q8_0"),
        *((arch, "split", "q4_k") for arch in ("qwen3", "v32", "step35", "qwen3next", *SCALED)),
        *((arch, "split", "q8_0") for arch in ("glm45", "glm5", "mimov2", "laguna", "v4", *RECURRENT[1:])),
        ("gptoss", "split", "mxfp4"),
    ],
)
def test_batches_of_every_kind_agree_with_float32(written: MakeTiny, arch: str, mla: str, quant: str) -> None:
    file = written(arch=arch, mla=mla, quant=quant).gguf
    settings = replace(SETTINGS, max_batch_size=16, cache_lens=1024)
    pair = pair_on_gpu(file, settings)
    rng = np.random.default_rng(6)
    for num_requests in (1, 2, 4, 5, 16):
        pair.forget()
        prompts = [tuple(rng.integers(0, 300, 4).tolist()) for _ in range(num_requests)]
        requests = [
            Request(str(seed), prompt, SamplingParams(max_tokens=max(200 // num_requests, 20), seed=seed))
            for seed, prompt in enumerate(prompts)
        ]
        generate(EngineCore(pair, scheduler_config(settings)), requests)
        assert pair.most_at_once == num_requests
        pair.check()


def test_warm_up_touches_only_the_null_block_and_no_expert(written: MakeTiny) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    pair = pair_on_cpu(file)
    hybrid = pair.second
    assert isinstance(hybrid, HybridModel)
    hybrid.warm_up([1, 40], hybrid._experts._host.idle(), range(len(hybrid.devices[0].kv.layers)))
    written = [kept.count_nonzero(1).nonzero().flatten().tolist() for kept in hybrid.kv_tensors]
    assert all(slots and max(slots) < SETTINGS.block_tokens for slots in written)
    assert hybrid.expert_bytes_read == 0
    run_requests(pair)
    assert pair.largest_error <= MAX_RELATIVE_ERROR


class StepByStep(Runner):
    """A runner that gets only whole steps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.window = runner.window

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        return self._runner.forward(batch, alive)


class Counted(StepByStep):
    """The same runner, called for the parts of a step; counts the steps that were staged during the previous one."""

    is_asynchronous = True

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.num_steps = self.num_staged = 0

    def stage(self, batch: Batch) -> None:
        self._runner.stage(batch)

    def logits(self, alive: Callable[[], None]) -> np.ndarray:
        return self._runner.logits(alive)

    def queue(self, batch: Batch, alive: Callable[[], None], *, is_staged: bool) -> None:
        self.num_steps += 1
        self.num_staged += is_staged
        self._runner.queue(batch, alive, is_staged=is_staged)


def texts_of_mixed_load(runner: Runner) -> dict[int, list[int]]:
    """Requests that arrive, stop and are aborted while others decode and blocks are scarce."""
    core = EngineCore(runner, scheduler_config(replace(SETTINGS, cache_lens=112)))
    rng = np.random.default_rng(3)
    texts: dict[int, list[int]] = {}
    for step in range(150):
        if step % 9 == 0 and step < 60:
            seq = len(texts) + 1
            texts[seq] = []
            prompt = tuple(rng.integers(0, 300, 3 + step // 3).tolist())
            stops = frozenset(rng.integers(0, 300, 6).tolist())
            core.add(seq, Request(str(seq), prompt, SamplingParams(max_tokens=40, stop_token_ids=stops)), seq)
        if step in (25, 50):
            core.abort(len(texts) - 1)
        for event in core.step().events:
            texts[event.seq].append(event.token_id)
        core.check()
    assert core.stats().used_tokens == 0
    assert core.stats().preemptions > 0
    assert {len(text) for text in texts.values()} > {40}, "some requests reach their length, others stop or are aborted"
    return texts


# qwen3's tables are a part of gptoss's, glm5's those of v3 with index keys, and mimov2's those of gptoss.
@pytest.mark.parametrize(
    ("arch", "device"),
    [
        *((arch, "cpu") for arch in ("v3", "gptoss", "qwen3next", "qwen38flashnext", "v4")),
        *if_long(*((arch, "cpu") for arch in ("qwen3", "glm5", "mimov2", "glm53flash"))),
        *(
            pytest.param(arch, "cuda", marks=pytest.mark.gpu)
            for arch in (
                *("v3", "qwen3", "gptoss", "glm5", "qwen3next", "glm53flash", "qwen38flashnext", "v4"),
                *if_long("mimov2"),
            )
        ),
    ],
)
def test_steps_planned_ahead_give_the_same_texts(written: MakeTiny, arch: str, device: str) -> None:
    file = written(arch=arch, mla="split", quant="q4_k").gguf
    model = load_hybrid(file, GPU if device == "cuda" else CPU, SETTINGS)
    assert model.is_asynchronous
    counted = Counted(model)
    assert texts_of_mixed_load(counted) == texts_of_mixed_load(StepByStep(model))
    assert 0.2 * counted.num_steps < counted.num_staged < 0.9 * counted.num_steps


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arch", "quant"),
    [
        *(("v3", quant) for quant in ("q4_k", "q8_0", "q2_k", "bf16")),
        *((arch, "q4_k") for arch in ("qwen3", "v32", "step35", "qwen3next", *SCALED)),
        *((arch, "q8_0") for arch in ("glm45", "glm5", "v4", *RECURRENT[1:])),
        *(("gptoss", quant) for quant in ("mxfp4", "q8_0")),
    ],
)
def test_streamed_experts_on_a_gpu_agree_with_the_cpu_model(written: MakeTiny, arch: str, quant: str) -> None:
    file = written(arch=arch, mla="split", quant=quant).gguf
    pair = pair_on_gpu(file, stream_from_tokens=2)
    hybrid = pair.second
    assert isinstance(hybrid, HybridModel)
    assert hybrid.pinned_bytes > 0
    assert hybrid.streamed is not None
    assert hybrid.streamed.from_tokens == 2
    run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    assert hybrid.streamed.bytes_read > 0
    pair.check()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arch", "quant"),
    [
        ("v3", "q4_k"),
        ("v2lite", "q8_0"),
        ("qwen3", "q4_k"),
        ("glm45", "q8_0"),
        ("gptoss", "mxfp4"),
        ("step35", "q4_k"),
        ("glm53flash", "q4_k"),
        ("qwen38flashnext", "q8_0"),
        ("v4", "q4_k"),
    ],
)
def test_joint_steps_on_a_gpu_agree_with_the_cpu_model(written: MakeTiny, arch: str, quant: str) -> None:
    file = written(arch=arch, mla="split", quant=quant).gguf
    longest = SETTINGS.prefill_chunk_size
    joint = JointSplit([(1, 0.5)], from_tokens=2, to_tokens=longest - 1)
    pair = pair_on_gpu(file, stream_from_tokens=longest, joint_split=joint)
    hybrid = pair.second
    assert isinstance(hybrid, HybridModel)
    assert hybrid.joint_tokens == (2, longest - 1)
    run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    assert hybrid.streamed is not None
    in_passes = hybrid.device_counts.streamed_steps * hybrid.streamed.pass_bytes
    assert in_passes < hybrid.streamed.bytes_read < hybrid.expert_bytes_read
    pair.check()


def request_in_blocks(num_tokens: int, blocks: list[int]) -> Batch:
    """One request that owns its blocks: tokens that share a slot overwrite each other in any order."""
    size = SETTINGS.block_tokens
    batch = padding(num_tokens, size)
    slots = np.repeat(np.array(blocks, np.int32), size)[:num_tokens] * np.int32(size) + batch.slots
    return replace(
        batch, token_ids=np.arange(num_tokens, dtype=np.int32), slots=slots, kv_indices=np.array(blocks, np.int32)
    )


@pytest.mark.gpu
def test_joint_steps_and_passes_share_the_devices_buffers(written: MakeTiny) -> None:
    file = written(arch="v3", mla="split", quant="q4_k").gguf
    split = JointSplit([(1, 0.5)], from_tokens=5, to_tokens=24)
    model = load(file, GPU, stream_from_tokens=32, joint_split=split)
    assert model.streamed is not None
    model.open_prefill_lane()
    short, long = request_in_blocks(20, [1, 2]), request_in_blocks(40, [3, 4, 5])

    def whole_pass() -> np.ndarray:
        model.begin_prefill(long)
        while not model.advance_prefill(lambda: None):
            pass
        return model.prefill_logits()

    def step() -> tuple[np.ndarray, int]:
        before = model.streamed.bytes_read
        return model.forward(short, lambda: None).copy(), model.streamed.bytes_read - before

    expected_long = whole_pass()
    expected_short, joint_bytes = step()
    assert 0 < joint_bytes < model.streamed.pass_bytes
    for _ in range(3):
        model.begin_prefill(long)
        model.advance_prefill(lambda: None)
        beside, streamed = step()
        assert streamed == 0, "the CPU computes alone during a pass"
        model.cancel_prefill()
        while not model.advance_prefill(lambda: None):
            pass
        again, streamed = step()
        assert streamed == joint_bytes
        for found, expected in ((beside, expected_short), (again, expected_short), (whole_pass(), expected_long)):
            np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arch", "quant"),
    [
        ("v3", "q4_k"),
        ("v2lite", "q8_0"),
        ("qwen3", "q4_k"),
        ("glm45", "q8_0"),
        ("gptoss", "mxfp4"),
        ("step35", "q4_k"),
        ("kimilinear", "q4_k"),
        ("qwen38flashnext", "q8_0"),
        ("v4", "q4_k"),
    ],
)
@pytest.mark.parametrize("divided", ["share", "some", "all"])
def test_divided_experts_on_a_gpu_agree_with_the_cpu_model(
    written: MakeTiny, arch: str, quant: str, divided: str
) -> None:
    file = written(arch=arch, mla="split", quant=quant).gguf
    gpu_experts = gpu_experts_of(file)[divided]
    pair = pair_on_gpu(file, gpu_experts=gpu_experts, pcie_share=0.4)
    hybrid = pair.second
    assert isinstance(hybrid, HybridModel)
    assert hybrid.device_counts.gpu_experts == sum(map(len, gpu_experts))
    run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    assert (hybrid.expert_bytes_read_over_pcie > 0) == (divided != "all")
    pair.check()


@pytest.mark.gpu
@pytest.mark.parametrize(("arch", "quant"), [("v3", "q4_k"), ("v2", "nvfp4"), ("gptoss", "mxfp4"), ("qwen3", "q8_0")])
@pytest.mark.parametrize("options", [{}, {"stream_from_tokens": 2}, {"pcie_share": 0.4}])
def test_experts_that_move_while_captured_steps_run_leave_the_logits(
    written: MakeTiny, arch: str, quant: str, options: dict[str, Any], experts_move_randomly: None
) -> None:
    """A model whose experts never move gives the expected logits."""
    file = written(arch=arch, mla="split", quant=quant).gguf
    pair = pair_on_gpu(file, gpu_experts=gpu_experts_of(file)["some"], updates_gpu_experts=True, **options)
    check_while_experts_move(pair)


def check_while_experts_move(pair: LedPair) -> None:
    """On every device."""
    hybrid = pair.second
    assert isinstance(hybrid, HybridModel)
    for _ in range(3):
        run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    run_requests(pair)
    moved = [each.moved_experts for each in hybrid.device_counts.devices]
    assert sum(moved) > 20
    assert min(moved) > 5
    pair.check()


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"stream_from_tokens": 2}, {"pcie_share": 0.4}])
@pytest.mark.parametrize(("arch", "split"), [("v3", [1, 3]), ("qwen3", [1]), ("v32", [2]), ("qwen3next", [2])])
def test_layers_divided_among_parts_of_a_gpu_agree_with_the_cpu_model(
    written: MakeTiny, arch: str, split: list[int], options: dict[str, Any]
) -> None:
    """Each part has its own graphs, cache, buffers and streams, as on separate GPUs."""
    file = written(arch=arch, mla="split", quant="q4_k").gguf
    resident = gpu_experts_of(file)["some"] if "pcie_share" in options else ()
    pair = pair_on_gpu(file, split=split, gpu_experts=resident, **options)
    hybrid = pair.second
    assert isinstance(hybrid, HybridModel)
    assert len(hybrid.devices) == len(split) + 1
    assert all(device.num_graphs == SETTINGS.max_batch_size for device in hybrid.devices)
    run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    pair.check()


@pytest.mark.gpu2
@pytest.mark.parametrize("options", [{}, {"stream_from_tokens": 2}, {"pcie_share": None, "stream_from_tokens": None}])
@pytest.mark.parametrize(
    ("arch", "split"),
    [("v2lite", 1), ("v3", 2), ("qwen3", 1), ("glm45", 1), ("gptoss", 1), ("step35", 2), ("v32", 2), ("qwen3next", 2)],
)
def test_layers_divided_among_two_gpus_agree_with_the_cpu_model(
    written: MakeTiny, arch: str, split: int, options: dict[str, Any]
) -> None:
    """Attention of each kind, captured; with streamed prompts, and with what is measured on each device."""
    file = written(arch=arch, mla="split", quant="mxfp4" if arch == "gptoss" else "q4_k").gguf
    resident = gpu_experts_of(file)["some"] if "pcie_share" in options else ()
    pair = pair_on_gpu(file, split=[split], others=[torch.device("cuda:1")], gpu_experts=resident, **options)
    hybrid = pair.second
    assert isinstance(hybrid, HybridModel)
    assert [str(device.torch_device) for device in hybrid.devices] == ["cuda:0", "cuda:1"]
    assert all(device.num_graphs == SETTINGS.max_batch_size for device in hybrid.devices)
    for device in hybrid.devices:
        caches = [*device.kv.tensors, *device.states.tensors]  # layers with recurrent state have nothing else
        assert {tensor.device for tensor in caches} == {device.torch_device}
    run_requests(pair)
    run_long_prompts(pair, SETTINGS)
    pair.check()
    if hybrid.streamed is not None:
        assert all(hybrid.streamed.bytes_read_by(device.torch_device) > 0 for device in hybrid.devices)
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu2
@pytest.mark.parametrize(("arch", "split"), [("v3", 2), ("qwen3", 1), ("gptoss", 1), ("qwen3next", 2)])
def test_caches_of_8_bits_on_two_gpus_change_distributions_little(written: MakeTiny, arch: str, split: int) -> None:
    file = written(arch=arch, mla="split", quant="q8_0").gguf
    others = [torch.device("cuda:1")]
    check_cache_of_8_bits(pair_on_gpu(file, split=[split], others=others, kv_dtype=torch.float8_e4m3fn), arch)


@pytest.mark.gpu2
@pytest.mark.parametrize(("arch", "split"), [("v3", 3), ("qwen3", 2)])
@pytest.mark.parametrize("options", [{}, {"stream_from_tokens": 2}, {"pcie_share": 0.4}])
def test_experts_that_move_on_two_gpus_leave_the_logits(
    written: MakeTiny, arch: str, split: int, options: dict[str, Any], experts_move_randomly: None
) -> None:
    """The first layer with experts is whole on the first GPU, and the others of both have some."""
    file = written(arch=arch, mla="split", quant="q4_k").gguf
    options = {"gpu_experts": gpu_experts_of(file)["some"], "updates_gpu_experts": True, **options}
    check_while_experts_move(pair_on_gpu(file, split=[split], others=[torch.device("cuda:1")], **options))


class Recorded(Runner):
    """A runner that requests the logits of every token, and records them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.window = runner.window
        self.seen: list[np.ndarray] = []

    def forward(self, batch: Batch, alive: Callable[[], None]) -> np.ndarray:
        everything = replace(batch, sampled=np.arange(batch.token_ids.size, dtype=np.int64))
        self.seen.append(self._runner.forward(everything, alive).copy())
        return self.seen[-1][batch.sampled]


@pytest.mark.gpu
@pytest.mark.parametrize("num_requests", [4, 16])
@pytest.mark.parametrize(
    ("arch", "mla"), [("v2lite", "joint"), *((arch, "split") for arch in ("v3", "qwen3", "glm45", *WINDOWED, *SPARSE))]
)
def test_captured_steps_give_the_results_of_queued_ones(
    written: MakeTiny, arch: str, mla: str, num_requests: int
) -> None:
    file = written(arch=arch, mla=mla, quant="q4_k").gguf
    # One model: another one might measure other implementations as faster.
    settings = replace(SETTINGS, max_batch_size=num_requests, cache_lens=1024, chunk_size=96, prefill_chunk_size=96)
    model = load(file, GPU, settings, decodes_by_graphs=False)
    rng = np.random.default_rng(2)
    sampling = SamplingParams(max_tokens=num_requests + 2, temperature=0.0)
    shortest = 30 if arch in SPARSE else 3  # so that some tokens attend to all positions and some to selected ones
    lengths = range(shortest, shortest + num_requests)
    requests = [Request(str(i), tuple(rng.integers(0, 300, i).tolist()), sampling) for i in lengths]
    found = []
    for _ in range(2):
        recorded = Recorded(model)
        list(generate(EngineCore(recorded, scheduler_config(settings)), requests))
        found.append(recorded.seen)
        model.capture_decode(lambda share: None)
    assert model.device_counts.decode_graphs == num_requests
    assert num_requests in {len(logits) for logits in found[0]}
    for queued, captured in zip(*found, strict=True):
        np.testing.assert_allclose(captured, queued, rtol=0, atol=1e-5 * np.abs(queued).max())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("v3", {}),
        ("v2lite", {"pcie_share": None, "stream_from_tokens": None}),
        ("qwen3", {}),
        ("v32", {}),
        ("mistral4", {}),
        ("glm45", {"pcie_share": None, "stream_from_tokens": None}),
        ("glm45", {"pcie_share": 0.4, "updates_gpu_experts": True}),
        ("qwen3", {"updates_gpu_experts": True}),
        ("gptoss", {"pcie_share": None, "stream_from_tokens": None}),
        ("mimov2", {}),
        ("kimilinear", {}),
        ("qwen3next", {}),
        ("qwen35", {}),
    ],
)
def test_no_step_waits_for_a_compiler(written: MakeTiny, arch: str, options: dict[str, Any]) -> None:
    file = written(arch=arch, mla="split", quant="q4_k_m").gguf
    longest = min(2048, read_spec(open_gguf(file), None).context_length)  # rope's tables end with the cache
    settings = replace(SETTINGS, cache_lens=2048, prefill_chunk_size=longest)
    model = load(file, GPU, settings, gpu_experts=gpu_experts_of(file)["some"], **options)
    compiled: list[str] = []
    triton.knobs.runtime.jit_cache_hook = lambda **about: compiled.append(about["repr"])
    try:
        for num_tokens in (*range(1, 70), *range(110, 180, 3), longest):
            batch = padding(num_tokens, SETTINGS.block_tokens)
            for sampled in (batch.sampled, np.arange(num_tokens)):
                model.forward(replace(batch, sampled=sampled), lambda: None)
    finally:
        triton.knobs.runtime.jit_cache_hook = None
    assert compiled == []


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_step_holds_the_position_of_each_request() -> None:
    batch = Batch(
        token_ids=i32(7, 7, 7, 7, 7),
        positions=i32(20, 4, 5, 6, 3),
        slots=i32(36, 84, 85, 86, 19),
        query_indptr=i32(0, 1, 4, 5),
        kv_indptr=i32(0, 2, 3, 4),
        kv_indices=i32(9, 2, 5, 1),
        sampled=np.array([0, 3, 4]),
    )
    requests = Step.from_batch(batch, CPU).requests
    assert requests.begins.tolist() == requests.host_begins.tolist() == [0, 1, 4, 5]
    assert requests.lens.tolist() == requests.host_lens.tolist() == [21, 7, 4]
    assert requests.blocks.tolist() == [[9, 2], [5, 0], [1, 0]]
    assert not requests.adds_one_each


def test_a_token_attends_to_its_own_request_up_to_itself_also_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = LatentSizes(num_heads=2, rank=16, rope_dim=8, scale=0.3, block_tokens=16)
    case = attention_case(sizes, [7, 2], [12, 30], CPU, torch.float32)
    at_once = PlainAttention(sizes)(case.query, case.cache, case.step)
    requests = case.step.requests
    for request, (begin, end) in enumerate([(0, 7), (7, 9)]):
        slots = torch.cat([torch.arange(16) + 16 * block for block in requests.blocks[request].tolist()])
        for token in range(begin, end):
            keys = case.cache[slots[: int(case.step.positions[token]) + 1]]
            weights = (case.query[token] @ keys.T * 0.3).softmax(-1)
            torch.testing.assert_close(at_once[token], weights @ keys[:, :16])
    monkeypatch.setattr(attention, "SCORE_BYTES", 4 * 2 * 12 * 2)
    torch.testing.assert_close(PlainAttention(sizes)(case.query, case.cache, case.step), at_once)


def test_the_input_of_decode_steps_has_a_fixed_address() -> None:
    inputs = DecodeInputs(3, 4, 8, CPU, copied)
    pair = inputs.of_size(2)
    batch = Batch(
        token_ids=i32(7, 7),
        positions=i32(20, 4),
        slots=i32(36, 84),
        query_indptr=i32(0, 1, 2),
        kv_indptr=i32(0, 2, 3),
        kv_indices=i32(9, 2, 5),
        sampled=np.array([0, 1]),
    )
    inputs.send_tables(replace(batch, kv_indptr=i32(0, 4, 8), kv_indices=i32(*[77] * 8)))
    inputs.send_tables(batch)
    inputs.host_rows(2)[:] = 5
    inputs.send_rows(2)
    alone = Step.from_batch(batch, CPU)
    step, requests = pair.step, pair.step.requests
    assert requests.adds_one_each
    for name in ("positions", "slots", "sampled"):
        assert getattr(step, name).tolist() == getattr(alone, name).tolist()
    for name in ("begins", "host_begins", "lens", "host_lens"):
        assert getattr(requests, name).tolist() == getattr(alone.requests, name).tolist()
    assert requests.blocks.tolist() == [[9, 2, 0, 0], [5, 0, 0, 0]]
    assert pair.embedded.tolist() == [[5.0] * 8] * 2
    inputs.send_padding(2)
    assert (step.positions.tolist(), step.slots.tolist()) == ([0, 0], [0, 0])
    assert (requests.lens.tolist(), requests.blocks.tolist()) == ([1, 1], [[0] * 4] * 2)
    assert step.positions.data_ptr() % 16 == step.slots.data_ptr() % 16 == requests.blocks.data_ptr() % 16
