"""A model whose layers are divided among devices gives the logits of one device: bit by bit, except where experts are
streamed, because each device adds those that it has streamed.

The devices are the CPU's memory, and an operation on tensors of two devices fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_changes
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.errors import EngineDeadError
from ballast.model.batch import Batch, padding
from ballast.model.hybrid.compiling.compiled_aside import CompiledAside
from ballast.model.hybrid.copies.blocks_of_devices import BlocksOfDevices
from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
from ballast.model.hybrid.devices import device as device_module
from ballast.model.hybrid.load_stages import experts as experts_stage
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.streaming.joint_split import JointSplit
from ballast.model.layer_ranges import check_ranges
from ballast.model.metadata import read_spec
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.weights.gguf import open_gguf
from devkit.long import if_long, times
from devkit.models.cpu_platform import CpuPlatform, DoneEvent
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.simulated_devices import SimulatedDevices, owner_of
from devkit.models.written import MakeTiny

CPU = torch.device("cpu")
Options = Callable[[ModelSpec], dict[str, Any]]
SETTINGS = EngineSettings(
    cache_lens=144,
    max_batch_size=4,
    max_new_tokens=40,
    chunk_size=24,
    prefill_chunk_size=48,
    max_queue=16,
    block_tokens=16,
)
SCARCE = replace(SETTINGS, cache_lens=104, block_tokens=8)
"""So few blocks that requests of `texts` are preempted."""
STREAM_FROM = 30
NEW_TOKENS = times(10, 20)
SUM_ORDER = 1e-4
"""Largest difference of logits between two orders of additions in float32."""
SPLITS = {"v3": ([2], [1, 3]), "qwen3": ([1, 2],), "v32": ([1, 2],), "glm5": ([2, 5],)}
"""By architecture, the layers at which another device begins. Layer 0 of v3 is dense, and layers 3 and 4 of glm5 use
the positions that layer 2 selects."""


class Recorded(Runner):
    """Records the logits of every token of every step."""

    def __init__(self, model: HybridModel) -> None:
        self._model = model
        self.seen: list[NDArray[np.float32]] = []

    def forward(self, batch: Batch, alive: Callable[[], None]) -> NDArray[np.float32]:
        everything = replace(batch, sampled=np.arange(batch.token_ids.size, dtype=np.int64))
        self.seen.append(self._model.forward(everything, alive).copy())
        return self.seen[-1][batch.sampled]


def spec_of(file: Path) -> ModelSpec:
    return read_spec(open_gguf(file), None)


def load(file: Path, split: list[int], settings: EngineSettings = SETTINGS, **options: Any) -> HybridModel:
    options = {"kv_dtype": torch.float32} | options
    return load_hybrid(file, CPU, settings, make_experts=FloatExperts, split=split, **options)


def texts(core: EngineCore) -> dict[int, list[int]]:
    """Prompts of several chunks, one of which is sent again, that decode together while blocks are scarce."""
    rng = np.random.default_rng(3)
    prompts = [tuple(rng.integers(0, 300, length).tolist()) for length in (50, 5, 40, 33)]
    prompts += [prompts[0], prompts[2]]
    found: dict[int, list[int]] = {}
    for seq, prompt in enumerate(prompts, 1):
        found[seq] = []
        core.add(seq, Request(str(seq), prompt, SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)), seq)
        for _ in range(4):
            for event in core.step().events:
                found[event.seq].append(event.token_id)
    while core.stats().running + core.stats().waiting:
        for event in core.step().events:
            found[event.seq].append(event.token_id)
        core.check()
    assert {len(text) for text in found.values()} == {NEW_TOKENS}
    return found


def some_resident(spec: ModelSpec) -> dict[str, Any]:
    """One whole layer and a third of the others are on devices, which also read some experts from host memory."""
    whole, num_layers = tuple(range(spec.routing.num_experts)), len(spec.routed_layers)
    return {
        "gpu_experts": (*(whole[1::3] for _ in range(num_layers - 1)), whole),
        "pcie_share": 0.4,
        "stream_from_tokens": 0,
    }


def following(spec: ModelSpec) -> dict[str, Any]:
    """Those follow use."""
    return some_resident(spec) | {"updates_gpu_experts": True}


def streamed(spec: ModelSpec) -> dict[str, Any]:
    return {"stream_from_tokens": STREAM_FROM}


def joint(spec: ModelSpec) -> dict[str, Any]:
    return streamed(spec) | {"joint_split": JointSplit([(1, 0.5)], from_tokens=5, to_tokens=STREAM_FROM - 1)}


def plain(spec: ModelSpec) -> dict[str, Any]:
    return {"stream_from_tokens": 0}


def short(spec: ModelSpec) -> dict[str, Any]:
    """A cache of 8 bits."""
    return plain(spec) | {"kv_dtype": torch.float8_e4m3fn}


def short_following(spec: ModelSpec) -> dict[str, Any]:
    return following(spec) | short(spec)


def following_streamed(spec: ModelSpec) -> dict[str, Any]:
    return following(spec) | streamed(spec)


def following_joint(spec: ModelSpec) -> dict[str, Any]:
    return following(spec) | joint(spec)


CASES = [
    # Three devices have both a boundary like that of two and a device between others.
    *(("v3", [1, 3], options) for options in (some_resident, joint)),
    ("qwen3", SPLITS["qwen3"][0], some_resident),
    ("glm5", SPLITS["glm5"][0], plain),
    ("v3", [2], following),
    ("v3", [1, 3], short),
    ("qwen3", SPLITS["qwen3"][0], short),
    *if_long(
        *(("v3", [1, 3], options) for options in (plain, streamed)),
        *(("v3", [2], options) for options in (plain, some_resident, streamed, joint, short_following)),
        ("glm5", SPLITS["glm5"][0], short),
        ("qwen3", SPLITS["qwen3"][0], plain),
        ("glm5", SPLITS["glm5"][0], some_resident),
        *(("v32", SPLITS["v32"][0], options) for options in (plain, some_resident)),
    ),
]


def bytes_read(model: HybridModel) -> NDArray[np.int64]:
    """Bytes of experts read so far: by all, and over PCIe."""
    return np.array([model.expert_bytes_read, model.expert_bytes_read_over_pcie])


@dataclass(frozen=True)
class Run:
    """What a model did with `texts`."""

    texts: dict[int, list[int]]
    logits: list[NDArray[np.float32]]
    bytes_read: NDArray[np.int64]
    expert_uses: NDArray[np.int64]
    streamed_steps: int
    gpu_experts: int
    moved_experts: list[int]
    """By device."""


def run(file: Path, split: list[int], options: Options) -> Run:
    model = load(file, split, SCARCE, **options(spec_of(file)))
    # Each device checks its own experts while it is loaded.
    uses, read, recorded = model.expert_uses, bytes_read(model), Recorded(model)
    core = EngineCore(recorded, scheduler_config(SCARCE))
    found = texts(core)
    assert core.stats().preemptions > 0
    assert core.stats().prefix_hit_tokens > 0
    counts = model.device_counts
    return Run(
        found,
        recorded.seen,
        bytes_read(model) - read,
        model.expert_uses - uses,
        counts.streamed_steps,
        counts.gpu_experts,
        [each.moved_experts for each in counts.devices],
    )


@functools.cache
def run_on_one(file: Path, options: Options) -> Run:
    return run(file, [], options)


@pytest.mark.parametrize(("arch", "split", "options"), CASES)
def test_divided_layers_give_the_same_logits(written: MakeTiny, arch: str, split: list[int], options: Options) -> None:
    file = written(arch=arch, mla="split", quant="f32").gguf
    one = run_on_one(file, options)
    with SimulatedDevices():
        several = run(file, split, options)
    assert several.texts == one.texts
    tolerance = SUM_ORDER if several.streamed_steps else 0.0
    for expected, found in zip(one.logits, several.logits, strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert several.streamed_steps == one.streamed_steps
    assert several.gpu_experts == one.gpu_experts
    if options is not joint:  # chunks are smaller, so the CPU computes other experts
        np.testing.assert_array_equal(several.bytes_read, one.bytes_read)
        np.testing.assert_array_equal(several.expert_uses, one.expert_uses)


@pytest.mark.parametrize("options", [following_streamed, following_joint, *if_long(following)])
@pytest.mark.parametrize(("arch", "split"), [("v3", [2]), *if_long(("v3", [2, 3]), ("qwen3", [1]), ("qwen3", [1, 2]))])
def test_experts_that_move_on_each_device_leave_the_logits(
    written: MakeTiny, arch: str, split: list[int], options: Options, experts_move_randomly: None
) -> None:
    """Those of a model without experts in its device's memory."""
    file = written(arch=arch, mla="split", quant="f32").gguf
    one = run_on_one(file, plain)
    with SimulatedDevices():
        several = run(file, split, options)
    assert several.texts == one.texts
    for expected, found in zip(one.logits, several.logits, strict=True):
        np.testing.assert_allclose(found, expected, rtol=SUM_ORDER, atol=SUM_ORDER)
    can_move = several.moved_experts[:2]  # a third device has the last layer alone, with all experts
    assert all(count > 10 for count in can_move)
    assert sum(several.moved_experts) == sum(can_move)
    assert several.streamed_steps > 0 or options is following


@pytest.mark.parametrize("arch", ["v3", *if_long("qwen3")])
def test_both_lanes_give_the_texts_of_one_device(written: MakeTiny, arch: str) -> None:
    file = written(arch=arch, mla="split", quant="f32").gguf
    found = []
    for split, devices in (([], nullcontext()), (SPLITS[arch][0], SimulatedDevices())):
        with devices:
            model = load(file, split, SCARCE, **streamed(spec_of(file)))
            config = scheduler_config(replace(SCARCE, stream_from_tokens=STREAM_FROM))
            found.append(texts(EngineCore(model, with_changes(config, prefill_costs=[(1, 1.0)]))))
        assert model.device_counts.streamed_steps > 2
    assert found[1] == found[0]


def prompt(num_tokens: int) -> Batch:
    """The first tokens of one request, in blocks 1…"""
    batch = padding(num_tokens, SETTINGS.block_tokens)
    return replace(
        batch,
        token_ids=np.arange(num_tokens, dtype=np.int32),
        slots=batch.positions + np.int32(SETTINGS.block_tokens),
        kv_indices=np.arange(1, batch.kv_indices.size + 1),
    )


@pytest.mark.parametrize("num_tokens", [1, 20], ids=["decode", "prefill"])
def test_the_stream_crosses_each_boundary_once(written: MakeTiny, num_tokens: int, simulated: SimulatedDevices) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    model = load(file, [1, 3], **streamed(spec_of(file)))
    simulated.crossings.clear()
    model.forward(prompt(num_tokens), lambda: None)
    shape = num_tokens, spec_of(file).hidden
    assert simulated.crossings == [(0, 1, shape), (1, 2, shape)]


def test_a_streamed_layer_goes_to_each_other_device_and_returns_once(
    written: MakeTiny, simulated: SimulatedDevices
) -> None:
    """Activations, ids and weights go from a layer's device to the others; a sum returns from each."""
    file = written(arch="v3", mla="split", quant="f32").gguf
    spec = spec_of(file)
    model = load(file, [1, 3], **streamed(spec))
    simulated.crossings.clear()
    model.forward(prompt(40), lambda: None)
    rows, chosen = (40, spec.hidden), (40, spec.routing.num_experts_used)

    def of_layer(owner: int) -> list[tuple[int, int, tuple[int, ...]]]:
        others = [number for number in range(3) if number != owner]
        there = [(owner, other, shape) for other in others for shape in (rows, chosen, chosen)]
        return [*there, *((other, owner, rows) for other in others)]

    boundaries = [(0, 1, rows), (1, 2, rows)]
    assert simulated.crossings == [boundaries[0], *of_layer(1), *of_layer(1), boundaries[1], *of_layer(2)]


class QueuedAgain:
    """The part of `DecodeGraphs` that is used; a replay queues the captured work again."""

    def __init__(self, stream: object) -> None:
        self.count = self.num_replays = 0

    def capture(
        self,
        max_batch_size: int,
        run: Callable[[int], None],
        queue: Callable[[int], None],
        report: Callable[[float], None],
        *,
        finishes_later: bool,
    ) -> None:
        self._queue, self.count = queue, max_batch_size
        for size in range(1, max_batch_size + 1):
            run(size)
            report(size / max_batch_size)

    def holds(self, batch_size: int) -> bool:
        return batch_size <= self.count

    def replay(self, batch_size: int) -> None:
        self.num_replays += 1
        self._queue(batch_size)


def test_each_device_replays_its_part_of_a_decode_step(
    written: MakeTiny, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "DecodeGraphs", QueuedAgain)
    file = written(arch="v3", mla="split", quant="f32").gguf
    model, reported = load(file, [1, 3], stream_from_tokens=0), []
    expected = [model.forward(prompt(length), lambda: None).copy() for length in (20, 1)]
    model.capture_decode(reported.append)
    assert reported == sorted(reported)
    assert reported[-1] == 1.0
    assert len(reported) == 3 * SETTINGS.max_batch_size
    assert model.device_counts.decode_graphs == SETTINGS.max_batch_size
    simulated.crossings.clear()
    for length, of_length in zip((20, 1), expected, strict=True):
        np.testing.assert_array_equal(model.forward(prompt(length), lambda: None), of_length)
    assert [device.graphs.num_replays for device in model.devices] == [1, 1, 1]
    assert [shape[0] for _, _, shape in simulated.crossings] == [20, 20, 1, 1]


def test_each_device_holds_what_its_layers_need(written: MakeTiny, simulated: SimulatedDevices) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    spec = spec_of(file)
    model = load(file, [1, 3], **some_resident(spec) | streamed(spec))
    assert [device.layers for device in model.devices] == [range(1), range(1, 3), range(3, 4)]
    for number, device in enumerate(model.devices):
        assert {owner_of(tensor) for tensor in device.kv.tensors} == {number}
        for layer in device.layers:
            weights = model.layers.weights.layers[layer]
            assert {owner_of(each.norm) for each in weights.inputs} == {number}
    assert [device.experts.num_gpu_experts > 0 for device in model.devices] == [False, True, True]
    assert [len(device.kv.layers) for device in model.devices] == [1, 2, 1]
    assert owner_of(model.layers.weights.end.norm) == 2


def test_every_device_copies_experts_of_every_layer_from_the_begin_of_a_step(
    written: MakeTiny, simulated: SimulatedDevices
) -> None:
    """Also a device that has no routed layer."""
    file = written(arch="v3", mla="split", quant="f32").gguf
    model = load(file, [1, 3], **streamed(spec_of(file)))
    assert model.streamed is not None
    parts = [part.experts for part in model.streamed._parts]
    assert [owner_of(part._buffers) for part in parts] == [0, 1, 2]
    assert [part.pass_bytes * 3 for part in parts] == [model.streamed.pass_bytes] * 3
    before = [part.bytes_read for part in parts]
    model.open_prefill_lane()
    model.begin_prefill(prompt(40))
    model.advance_prefill(lambda: None)
    assert all(part.has_layer(layer) for part in parts for layer in range(model.streamed.num_layers))
    assert [part.bytes_read for part in parts] == before
    assert all(part._prefetch._next_load > 0 for part in parts)
    while not model.advance_prefill(lambda: None):
        pass
    model.prefill_logits()
    assert [part.bytes_read - read for part, read in zip(parts, before, strict=True)] == [
        part.pass_bytes for part in parts
    ]


def test_each_device_reads_the_share_that_is_best_for_its_link(
    written: MakeTiny, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = {torch.device("cpu", 0): 0.125, torch.device("cpu", 1): 0.0}
    monkeypatch.setattr(experts_stage, "measured_share", lambda *given: best[given[4]])
    model = load(written(arch="v3", mla="split", quant="f32").gguf, [2], pcie_share=None)
    numbers = model.device_counts.devices
    assert [(each.layers, each.pcie_share) for each in numbers] == [((0, 1), 0.125), ((2, 3), 0.0)]
    assert [float(device.experts.share) for device in model.devices] == [0.125, 0.0]
    model._experts.leave_bus(True)
    assert [float(device.experts.share) for device in model.devices] == [0.0, 0.0]
    model._experts.leave_bus(False)
    model.forward(prompt(1), lambda: None)
    assert [float(device.experts.share) for device in model.devices] == [0.125, 0.0]
    assert model.device_counts.pcie_share == 0.125


def test_counters_of_each_device_add_up(written: MakeTiny, simulated: SimulatedDevices) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    model = load(file, [1, 3], **some_resident(spec_of(file)) | streamed(spec_of(file)))
    for length in (1, 40):
        model.forward(prompt(length), lambda: None)
    numbers = model.device_counts.devices
    assert [each.layers for each in numbers] == [(0, 0), (1, 2), (3, 3)]
    assert [each.pcie_share for each in numbers] == [0.0, 0.4, 0.0], "the others have no experts in host memory"
    assert sum(each.expert_bytes_over_pcie for each in numbers) == model.expert_bytes_read_over_pcie
    assert all(each.expert_bytes_over_pcie > 0 for each in numbers), "also of a device without routed layers"
    assert numbers[0].gpu_experts == 0


def test_no_table_is_overwritten_before_its_copy_has_run(
    written: MakeTiny, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first device gets rows of tokens from the host; the others wait for the copies of their tables, too."""
    waited: list[tuple[torch.device, int]] = []

    class CountedEvent(DoneEvent):
        def __init__(self, device: torch.device) -> None:
            self._device, self._count = device, 0

        def record(self) -> None:
            self._count += 1

        def synchronize(self) -> None:
            waited.append((self._device, self._count))

    monkeypatch.setattr(CpuPlatform, "event", lambda platform: CountedEvent(platform.device))
    model = load(written(arch="v3", mla="split", quant="f32").gguf, [2])
    waited.clear()
    for _ in range(2):
        model.forward(prompt(1), lambda: None)
    for number in range(2):
        counts = [count for device, count in waited if device == torch.device("cpu", number)]
        assert len(counts) == 2
        assert counts[1] > counts[0], "the second step waits for what the first one has copied"


def test_blocks_of_all_devices_return_unchanged_from_host_memory(
    written: MakeTiny, simulated: SimulatedDevices
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    model = load(file, [1, 3])
    take = platform_of(CPU).host_memory()
    blocks = BlocksOfDevices([DeviceBlocks(device.kv.tensors, 16, take) for device in model.devices], take)
    one = DeviceBlocks(load(file, []).kv_tensors, 16, take)
    assert blocks.block_bytes == one.block_bytes
    model.forward(prompt(40), lambda: None)
    before = [tensor[16:64].clone() for tensor in model.kv_tensors]
    memory = blocks.new_memory(3)
    assert blocks.copy_out([1, 2, 3], list(memory)).query()
    blocks.before_writing([1, 2, 3], lambda: None)
    for tensor in model.kv_tensors:
        tensor.zero_()
    assert blocks.copy_in([3, 1, 2], [memory[2], memory[0], memory[1]]).query()
    for tensor, expected in zip(model.kv_tensors, before, strict=True):
        assert torch.equal(tensor[16:64], expected)
        assert expected.any()


def test_kernels_of_a_device_are_taken_into_use_while_it_is_active(
    written: MakeTiny, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(written(arch="v3", mla="split", quant="f32").gguf, [2])
    active: list[torch.device] = []
    used: list[list[torch.device]] = []

    @contextmanager
    def recorded(platform: CpuPlatform) -> Iterator[None]:
        active.append(platform.device)
        yield
        active.pop()

    monkeypatch.setattr(CpuPlatform, "active", recorded)
    for device in model.devices:
        compiled = CompiledAside("some", lambda: None)
        compiled.wait(60)
        device.late.add(compiled, lambda: used.append(list(active)))
    model.devices.use_compiled()
    assert used == [[torch.device("cpu", 0)], [torch.device("cpu", 1)]]


@pytest.mark.parametrize("full", [0, 1])
def test_the_error_names_the_device_that_is_full(
    written: MakeTiny, full: int, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(written(arch="v3", mla="split", quant="f32").gguf, [2])

    def refused(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 MiB.")

    monkeypatch.setattr(model.devices[full].pointwise, "add_and_norm", refused)
    with pytest.raises(EngineDeadError, match=f"cpu:{full} is full: 3.00 MiB more wanted"):
        model.forward(prompt(20), lambda: None)


@pytest.mark.parametrize("full", [0, 1])
def test_the_error_names_the_device_that_is_too_full_for_streamed_experts(
    written: MakeTiny, full: int, simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it computes experts of another device's layer."""
    file = written(arch="v3", mla="split", quant="f32").gguf
    model = load(file, [2], **streamed(spec_of(file)))
    assert model.streamed is not None

    def refused(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 MiB.")

    monkeypatch.setattr(model.streamed._parts[full].experts, "_make_sums", refused)
    with pytest.raises(EngineDeadError, match=f"cpu:{full} is full: 3.00 MiB more wanted"):
        model.forward(prompt(40), lambda: None)


@pytest.mark.parametrize(
    ("arch", "ranges", "message"),
    [
        ("v3", [range(2)], "expected each of 4 once, in order"),
        ("v3", [range(2), range(3, 4)], "expected each of 4 once, in order"),
        ("v3", [range(2, 4), range(2)], "expected each of 4 once, in order"),
        ("v3", [range(2), range(2, 2), range(2, 4)], "expected each of 4 once, in order"),
        ("glm5", [range(3), range(3, 6)], "layer 3 uses the positions that a layer below selects"),
    ],
)
def test_ranges_that_cannot_be_computed_are_refused(
    written: MakeTiny, arch: str, ranges: list[range], message: str
) -> None:
    spec = spec_of(written(arch=arch, mla="split", quant="f32").gguf)
    with pytest.raises(ValueError, match=message):
        check_ranges(spec, ranges)


def test_tensors_of_two_devices_are_refused(simulated: SimulatedDevices) -> None:
    first, second = (torch.ones(3, device=torch.device("cpu", number)) for number in (0, 1))
    with pytest.raises(RuntimeError, match="expected one device"):
        first + second
    moved = first[1:].to(second.device)
    assert (moved + second[1:]).tolist() == [2, 2]
    assert simulated.crossings == [(0, 1, (2,))]
