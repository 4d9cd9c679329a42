"""Recurrent states of devices are copied to host memory and to disk, and fetched back unchanged, while steps read and
write other slots. Without the mark `gpu`, the devices are the CPU's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ballast.engine.core import BUSY, IDLE, EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_changes, with_tiers
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.engine.startup.build import DeviceSettings, EngineSettings, scheduler_config
from ballast.engine.startup.loading import _tiers, copied_cache, load_runner
from ballast.errors import EngineDeadError
from ballast.model.hybrid.copies.device_states import DeviceStates
from ballast.model.hybrid.faults import device_wait
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.platforms.interface import Bytes
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.metadata import read_spec
from ballast.model.tiers.block_file import BlockFile
from ballast.model.tiers.cache_blocks import CacheStates
from ballast.model.tiers.disk_tier import DiskTier
from ballast.model.tiers.host_tier import HostTier
from ballast.model.tiers.tier import CacheTiers, KvTier
from ballast.weights.gguf import open_gguf
from devkit.long import if_long, spread
from devkit.models.cpu_platform import CpuPlatform
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.simulated_devices import SimulatedDevices
from devkit.models.written import MakeTiny
from devkit.tiers import tiers_of, until_written
from devkit.turns import SETTINGS, cached, converse, greedy, texts

CPU = torch.device("cpu")
SHAPES = ((4, 16, 32), (3, 192)), ((2, 16, 32), (3, 96))
"""The states of a slot in two layers, recurrent and of the convolution."""
SMALL = replace(SETTINGS, cache_lens=320)
"""Holds about two of four conversations."""
SCARCE = replace(SETTINGS, cache_lens=184, chunk_size=8, prefill_chunk_size=8)
"""So few blocks that requests are preempted."""
STREAM_FROM = 30


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def states_of(device: torch.device, layers: Sequence[Sequence[tuple[int, ...]]] = SHAPES) -> list[torch.Tensor]:
    """Any bits, with 9 slots."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(9, *shape) for layer in layers for shape in layer]
    bits = [torch.randint(-(2**31), 2**31 - 1, shape, generator=generator, dtype=torch.int32) for shape in shapes]
    return [each.view(torch.float32).to(device) for each in bits]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


def done(copy: Any) -> None:
    device_wait.wait_for([copy], lambda: None)


def test_fetched_states_are_unchanged(device: torch.device) -> None:
    tensors = states_of(device)
    before = [bits(tensor).clone() for tensor in tensors]
    platform_of(device).synchronize()
    states = DeviceStates([tensors], platform_of(device).host_memory())
    assert states.state_bytes == sum(tensor[0].nbytes for tensor in tensors)
    memory = states.new_memory(3)
    done(states.copy_out([5, 1, 8], list(memory)))
    held = np.concatenate([tensor[5].cpu().numpy().ravel() for tensor in before])
    assert np.array_equal(memory[0].view(np.int32), held), "ordered by layer, the convolution's last"
    for tensor in tensors:
        tensor.zero_()
    platform_of(device).synchronize()  # a copy waits for nothing
    done(states.copy_in([2, 8, 3], list(memory)))
    for tensor, old in zip(tensors, before, strict=True):
        for source, target in ((5, 2), (1, 8), (8, 3)):
            assert torch.equal(bits(tensor)[target], old[source])
        assert not bits(tensor)[[0, 1, 4, 5, 6, 7]].any()


def test_each_device_copies_the_states_of_its_layers(simulated: SimulatedDevices) -> None:
    """A device in between has no recurrent layer. The host memory is that of one device with all layers."""
    devices = [states_of(torch.device("cpu", 0), SHAPES[:1]), [], states_of(torch.device("cpu", 2), SHAPES[1:])]
    before = [bits(tensor).clone() for tensors in devices for tensor in tensors]
    take = platform_of(CPU).host_memory()
    states, one = DeviceStates(devices, take), DeviceStates([states_of(CPU)], take)
    assert states.state_bytes == one.state_bytes
    assert states.layout != one.layout
    memory = states.new_memory(1)
    done(states.copy_out([4], list(memory)))
    assert np.array_equal(memory[0].view(np.int32), np.concatenate([each[4].cpu().numpy().ravel() for each in before]))
    done(states.copy_in([6], list(memory)))
    tensors = [tensor for own in devices for tensor in own]
    assert all(torch.equal(bits(own)[6], old[4]) for own, old in zip(tensors, before, strict=True))
    assert not simulated.crossings


@dataclass
class Slow:
    """A copy that is done when the test sets it."""

    is_done: bool = False

    def query(self) -> bool:
        return self.is_done


def test_a_step_waits_only_for_copies_of_slots_that_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two devices, the second of which is slow."""
    copies = [Slow(is_done=True), Slow()]
    streams = [type("Stream", (), {"record_event": lambda _, copy=copy: copy})() for copy in copies]
    monkeypatch.setattr(CpuPlatform, "new_stream", lambda _: streams.pop(0))
    states = DeviceStates([states_of(CPU), states_of(CPU)], platform_of(CPU).host_memory())
    monkeypatch.setattr(device_wait, "LIMIT_S", 0.05)
    states.copy_out([3, 4], list(states.new_memory(2)))
    states.before_writing([1, 2, 5], lambda: None)
    with pytest.raises(EngineDeadError):
        states.before_writing([2, 4], lambda: None)
    threading.Timer(0.02, lambda: setattr(copies[1], "is_done", True)).start()
    monkeypatch.setattr(device_wait, "LIMIT_S", 10.0)
    states.before_writing([2, 4], lambda: None)


@pytest.mark.gpu
def test_a_gpu_computes_while_states_are_copied() -> None:
    """The copy is held up on its stream. Other slots are written meanwhile, and its own one when it is over."""
    gpu = torch.device("cuda:0")
    tensors = states_of(gpu)
    before = [bits(tensor[3]).clone() for tensor in tensors]
    states = DeviceStates([tensors], platform_of(gpu).host_memory())
    memory = states.new_memory(1)
    for tensor in tensors:
        tensor[2] = 5.0  # so that the kernel is loaded, which may wait for the device
    torch.cuda.synchronize()
    with torch.cuda.stream(states._parts[0].stream):
        torch.cuda._sleep(2_000_000_000)  # about a second
    copy = states.copy_out([3], list(memory))
    states.before_writing([0, 1, 2], lambda: None)
    for tensor in tensors:
        tensor[1] = 5.0
    torch.cuda.current_stream().synchronize()
    assert not copy.query(), "a step has waited for a copy of another slot"
    states.before_writing([3], lambda: None)
    for tensor in tensors:
        tensor[3] = 7.0
    assert np.array_equal(memory[0].view(np.int32), np.concatenate([each.cpu().numpy().ravel() for each in before]))


class Late:
    """A copy that runs when it was asked for several times, after those that began before it."""

    def __init__(self, queue: list[Late], num_polls: int, run: Callable[[], object]) -> None:
        self._queue, self._num_polls, self._run = queue, num_polls, run
        self.is_done = False
        queue.append(self)

    def query(self) -> bool:
        self._num_polls -= 1
        while not self.is_done and self._num_polls <= 0:
            first = self._queue.pop(0)
            first._run()
            first.is_done = True
        return self.is_done


class LateStates(DeviceStates):
    """Copies run as late as steps allow, or after `num_polls` of their tier."""

    num_polls = 0
    num_waits = 0
    """Steps that have waited for copies."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.queue: list[Late] = []

    def copy_out(self, slots: Sequence[int], to: Sequence[Bytes]) -> Any:
        late = Late(self.queue, self.num_polls, lambda: super(LateStates, self).copy_out(slots, to))
        self._going_out.add(late, slots)
        return late

    def copy_in(self, slots: Sequence[int], sources: Sequence[Bytes]) -> Any:
        return Late(self.queue, self.num_polls, lambda: super(LateStates, self).copy_in(slots, sources))

    def before_writing(self, slots: Sequence[int], alive: Callable[[], None]) -> None:
        num_left = len(self.queue)
        super().before_writing(slots, alive)
        self.num_waits += len(self.queue) < num_left


def load(
    written: MakeTiny, device: torch.device, settings: EngineSettings, arch: str = "qwen3next", **options: Any
) -> HybridModel:
    on_cpu: dict[str, Any] = {"make_experts": FloatExperts, "kv_dtype": torch.float32}
    file = written(arch=arch, mla="split", quant="f32" if device == CPU else "q4_k").gguf
    options = {"stream_from_tokens": 0} | options | (on_cpu if device == CPU else {})
    return load_hybrid(file, device, settings, **options)


HOST, DISK, BOTH = "host", "disk", "both"


def add_tiers(
    model: HybridModel, settings: EngineSettings, which: str, folder: Path, num_states: int = 60, num_polls: int = 0
) -> CacheStates:
    """Give a model tiers, which have room for about `num_states` states. Their copies are late if `num_polls` > 0."""
    news, take = threading.Event(), model.devices[0].platform.host_memory()
    blocks, states = copied_cache(model, settings.block_tokens, take)
    if num_polls:
        states = LateStates([each.states.tensors for each in model.devices], take)
        states.num_polls = num_polls
    assert states is not None
    assert states.state_bytes == model.state_bytes
    tiers: list[KvTier] = []
    if which in (HOST, BOTH):
        tiers.append(HostTier(blocks, 4 * num_states * states.state_bytes, states))
        assert (tiers[0].num_states, tiers[0].num_blocks >= 200) == (num_states, True)
    if which in (DISK, BOTH):
        sizes = blocks.block_bytes, settings.block_tokens, num_states, states.state_bytes
        tiers.append(DiskTier(BlockFile(folder, "0" * 32, 600, *sizes), blocks, 16, news.set, states, 4))
    model.cache_tiers = CacheTiers(blocks, tiers, news, states)
    return states


def core_of(model: HybridModel, settings: EngineSettings, *, lanes: int = 1, **changes: Any) -> EngineCore:
    config = with_tiers(scheduler_config(replace(settings, stream_from_tokens=STREAM_FROM)), model)
    return EngineCore(model, with_changes(config, **({"prefill_costs": [(1, 1.0)]} if lanes == 2 else {}), **changes))


def conversations(core: EngineCore) -> list[Any]:
    """Three turns of four. After each turn, all conversations are at rest."""
    return converse(core, num_conversations=4, num_common=60, max_tokens=9, num_added=12, after_turn=lambda: rest(core))


def rest(core: EngineCore) -> None:
    core.rest()
    while core.step() is not IDLE:
        until_written(core)


def fetched(core: EngineCore) -> list[int]:
    return [tier.fetched_tokens for tier in core.stats().tiers]


@pytest.fixture(scope="module")
def expected(written: MakeTiny) -> list[tuple[int, ...]]:
    """Every token is computed for each request."""
    torch.set_num_threads(1)
    found = texts(conversations(core_of(load(written, CPU, SETTINGS), SETTINGS, prefix_cache=False)))
    assert len(set(found)) > len(found) // 2, "the texts are too similar to prove anything"
    return found


@pytest.mark.parametrize(
    ("which", "lanes", "split"),
    [(BOTH, 2, []), (HOST, 1, [2, 3]), *if_long((HOST, 1, []), (DISK, 1, []), (HOST, 2, [1]), (DISK, 1, [1]))],
)
def test_text_is_the_same_after_fetches(
    written: MakeTiny, expected: list[tuple[int, ...]], tmp_path: Path, which: str, lanes: int, split: list[int]
) -> None:
    """The first of two devices has no attention layer."""
    on_one = load(written, CPU, SMALL, stream_from_tokens=STREAM_FROM)
    plain = cached(conversations(core_of(on_one, SMALL, lanes=lanes)))
    with SimulatedDevices() if split else nullcontext():
        model = load(written, CPU, SMALL, split=split, stream_from_tokens=STREAM_FROM)
        add_tiers(model, SMALL, which, tmp_path)
        core = core_of(model, SMALL, lanes=lanes)
        replies = conversations(core)
        assert texts(replies) == expected
        assert fetched(core)[0] > 100
        assert cached(replies) > plain + 100
        states = [(each.num_states, each.most_storing_states) for each in model.cache_tiers.tiers]
        assert all(count > 0 for sizes in states for count in sizes)
        assert all(0 < each.states <= 60 for each in core.stats().tiers)
        core.check()
        core.close()


@pytest.mark.parametrize(("num_polls", "settings"), spread([1, 5, 40], [SMALL, SCARCE]))
def test_text_is_the_same_if_copies_are_late(
    written: MakeTiny, expected: list[tuple[int, ...]], tmp_path: Path, settings: EngineSettings, num_polls: int
) -> None:
    """Slots are written again before their copies have run, unless steps wait."""
    model = load(written, CPU, settings)
    states = add_tiers(model, settings, HOST, tmp_path, num_polls=num_polls)
    core = core_of(model, settings)
    assert texts(conversations(core)) == expected
    assert fetched(core)[0] > 0
    if settings is SCARCE:
        assert core.stats().preemptions > 0, "the cache was too large to force a preemption"
    assert isinstance(states, LateStates)
    assert num_polls < 40 or states.num_waits > 0, "no step has written to a slot that was being copied"
    core.close()


def test_a_request_is_aborted_while_its_state_is_fetched(
    written: MakeTiny, expected: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """Its slot is used again only after the copy."""
    model = load(written, CPU, SMALL)
    states = add_tiers(model, SMALL, HOST, tmp_path)
    core = core_of(model, SMALL)
    first, *others = [tuple(range(at, at + 90)) for at in (1, 100, 150, 200)]
    converse_once(core, 1, first)
    for seq, prompt in enumerate(others, 2):
        converse_once(core, seq, prompt)
    late = LateStates([each.states.tensors for each in model.devices], model.devices[0].platform.host_memory())
    late.num_polls = 25
    core._tiers._states = core._tiers._tiers[0]._states = late
    assert isinstance(states, DeviceStates)
    core.add(7, Request("test", first, SamplingParams(max_tokens=4, temperature=0.0)), 0)
    while not late.queue:
        core.step()
    assert core.stats().fetching == 1
    core.abort(7)
    assert core.stats().fetching == 1, "the copy still writes to its slot"
    replies = [converse_once(core, 8 + at, prompt) for at, prompt in enumerate((first, *others))]
    late.num_polls = 0
    rest(core)
    stats = core.stats()
    assert (stats.fetching, stats.state_slots_used) == (0, 0)
    core.check()
    core.close()
    plain = core_of(load(written, CPU, SETTINGS), SETTINGS, prefix_cache=False)
    assert replies == [converse_once(plain, at, prompt) for at, prompt in enumerate((first, *others), 1)]


def converse_once(core: EngineCore, seq: int, prompt: Sequence[int]) -> list[int]:
    core.add(seq, greedy(prompt, 4), 0)
    tokens: list[int] = []
    while len(tokens) < 4:
        result = core.step()
        tokens += [event.token_id for event in result.events if event.seq == seq]
    return tokens


def logprobs(core: EngineCore, seq: int, prompt: Sequence[int]) -> list[TokenLogprobs | None]:
    """The eight most probable tokens at each token of a greedy reply, with their log probabilities."""
    core.add(seq, Request("test", tuple(prompt), SamplingParams(max_tokens=4, temperature=0.0, logprobs=8)), 0)
    found: list[TokenLogprobs | None] = []
    while len(found) < 4:
        result = core.step()
        assert result is not IDLE
        found += [event.logprobs for event in result.events if result is not BUSY]
    rest(core)
    return found


@pytest.mark.parametrize(
    ("arch", "split", "which"),
    spread(["qwen3next", *if_long("qwen35"), "glm53flash", "qwen38flashnext", "v4"], [[], [2]], [HOST, DISK]),
)
def test_logits_after_fetches_are_those_from_snapshots(
    device: torch.device, written: MakeTiny, tmp_path: Path, arch: str, split: list[int], which: str
) -> None:
    """Bit by bit, also on a GPU: both runs compute the same few tokens, none of them the last of a block, after the
    same blocks and states."""
    settings = replace(SMALL, block_tokens=16)
    with SimulatedDevices() if device == CPU and split else nullcontext():
        model = load(written, device, settings, arch, split=split)
        add_tiers(model, settings, which, tmp_path)
        core = core_of(model, settings)
        prompt = list(range(10, 130))
        logprobs(core, 1, prompt)
        kept = logprobs(core, 2, prompt)
        assert (fetched(core), core.stats().snapshot_hits) == ([0], 1)
        for other in range(4):
            logprobs(core, 10 + other, range(140 + other, 260 + other))
        before = fetched(core)[0]
        assert logprobs(core, 3, prompt) == kept
        assert fetched(core)[0] == before + 7 * 16
        core.check()
        core.close()


def test_a_tier_that_is_too_small_for_a_state_is_not_used(written: MakeTiny, caplog: pytest.LogCaptureFixture) -> None:
    model = load(written, CPU, SETTINGS)
    blocks, states = copied_cache(model, 4, platform_of(CPU).host_memory())
    settings = replace(SETTINGS, kv_host_bytes=4 * model.state_bytes - 1)
    gguf = open_gguf(written(arch="qwen3next", mla="split", quant="f32").gguf)
    assert _tiers(gguf, blocks, settings, states) is None
    (record,) = (each for each in caplog.records if each.message == "kv_host_bytes is not used")
    assert "is too small for one recurrent state of" in vars(record)["why"]
    found = _tiers(gguf, blocks, replace(settings, kv_host_bytes=4 * model.state_bytes), states)
    assert found is not None
    assert found.tiers[0].num_states == 1


def test_a_tier_has_room_for_a_block_besides_its_states(written: MakeTiny) -> None:
    model = load(written, CPU, SETTINGS)
    all_tokens = len(model.kv_tensors[0])
    blocks, states = copied_cache(model, all_tokens, platform_of(CPU).host_memory())
    assert blocks.block_bytes > 4 * model.state_bytes
    gguf = open_gguf(written(arch="qwen3next", mla="split", quant="f32").gguf)
    assert _tiers(gguf, blocks, replace(SETTINGS, kv_host_bytes=blocks.block_bytes), states) is None
    found = _tiers(gguf, blocks, replace(SETTINGS, kv_host_bytes=2 * blocks.block_bytes), states)
    assert found is not None
    assert found.tiers[0].num_blocks == 1


def test_a_loaded_model_has_tiers_for_its_states(
    device: torch.device, written: MakeTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one device, as a server loads it."""
    if device == CPU:
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    gguf = open_gguf(written(arch="qwen3next", mla="split", quant="f32" if device == CPU else "q4_k").gguf)
    spec = read_spec(gguf, None)
    settings = replace(
        SMALL,
        block_tokens=16,
        devices=(DeviceSettings(str(device), range(spec.num_layers)),),
        stream_from_tokens=0,
        kv_host_bytes=128 << 20,
        kv_disk_dir=tmp_path,
        kv_disk_bytes=64 << 20,
    )
    runner = load_runner(gguf, spec, spec.vocab_size, settings)
    core = EngineCore(runner, with_tiers(scheduler_config(settings), runner))
    replies = conversations(core)
    assert cached(replies) > 0
    stats = core.stats()
    assert [tier.states > 0 for tier in stats.tiers] == [True, True]
    assert fetched(core)[0] > 100
    assert core.state_bytes == spec.state_bytes
    assert {tier.state_bytes for tier in tiers_of(core)} == {core.state_bytes}
    (moved, _) = core.tier_numbers(stats)
    in_blocks = moved.hit_tokens // settings.block_tokens * tiers_of(core)[0].block_bytes
    assert (moved.fetched_bytes - in_blocks) % core.state_bytes == 0
    assert moved.fetched_bytes > in_blocks
    core.close()
