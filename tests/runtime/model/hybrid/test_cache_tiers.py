"""Blocks of a device's KV cache are copied to host memory and to disk, and fetched back unchanged."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.runner import with_changes, with_tiers
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import _tiers
from ballast.errors import EngineDeadError
from ballast.model.hybrid.attention.device_kv_pool import DeviceKvPool
from ballast.model.hybrid.copies.blocks_of_devices import BlocksOfDevices
from ballast.model.hybrid.copies.device_blocks import COPIED_AT_ONCE, DeviceBlocks
from ballast.model.hybrid.faults import device_wait
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.layers.plane import row_bytes
from ballast.model.tiers import host_tier
from ballast.model.tiers.block_file import BlockFile
from ballast.model.tiers.disk_tier import DiskTier
from ballast.model.tiers.host_tier import HostTier
from ballast.model.tiers.tier import CacheTiers, KvTier
from ballast.weights.gguf import open_gguf
from devkit.generate import Generated, generate
from devkit.long import if_long, spread
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.specs.mimo import MIMO_SPEC
from devkit.models.written import MakeTiny
from devkit.tiers import until_written

BLOCK_TOKENS, NUM_BLOCKS = 16, 40
WIDTHS = (24, 10, 24)
"""Widths of a layer's rows, of its index keys, and of the rows of a layer without index keys."""
SETTINGS = EngineSettings(
    cache_lens=320,
    max_batch_size=4,
    max_new_tokens=64,
    chunk_size=64,
    prefill_chunk_size=64,
    max_queue=24,
    block_tokens=BLOCK_TOKENS,
)


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def cache(device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    num_slots = NUM_BLOCKS * BLOCK_TOKENS
    return [torch.randn(num_slots, width, generator=generator).half().to(device) for width in WIDTHS]


def test_fetched_blocks_are_unchanged(device: torch.device) -> None:
    layers = cache(device)
    before = [layer.clone() for layer in layers]
    platform_of(device).synchronize()
    blocks = DeviceBlocks(layers, BLOCK_TOKENS, platform_of(device).host_memory())
    assert blocks.block_bytes == BLOCK_TOKENS * sum(WIDTHS) * 2
    memory = blocks.new_memory(NUM_BLOCKS)
    order = random.Random(5).sample(range(1, NUM_BLOCKS), 2 * COPIED_AT_ONCE + 3)
    copy = blocks.copy_out(order, list(memory[: len(order)]))
    device_wait.wait_for([copy], lambda: None)
    first = order[0] * BLOCK_TOKENS
    held = np.concatenate([layer[first : first + BLOCK_TOKENS].cpu().numpy().ravel() for layer in before])
    assert np.array_equal(memory[0].view(np.float16), held), "ordered by layer, then by token"
    for block in order:
        for layer in layers:
            layer[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS] = 0
    device_wait.wait_for([blocks.copy_in(order, list(memory[: len(order)]))], lambda: None)
    assert all(torch.equal(one, other) for one, other in zip(layers, before, strict=True))


def test_layers_with_a_window_have_blocks_of_their_own(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(7)
    layers = [
        torch.randn(num_blocks * BLOCK_TOKENS, 24, generator=generator).half().to(device) for num_blocks in (40, 12)
    ]
    before = [layer.clone() for layer in layers]
    blocks = DeviceBlocks(layers, BLOCK_TOKENS, platform_of(device).host_memory(), [False, True])
    memory = blocks.new_memory(3)
    device_wait.wait_for([blocks.copy_out([30, 2, 39], list(memory), [11, 0, 4])], lambda: None)
    for layer in layers:
        layer.zero_()
    platform_of(device).synchronize()  # a copy waits for nothing
    device_wait.wait_for([blocks.copy_in([5, 6, 7], list(memory), [1, 2, 0])], lambda: None)

    def block(layer: torch.Tensor, number: int) -> torch.Tensor:
        return layer[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]

    for index, moves in enumerate(([(30, 5), (2, 6), (39, 7)], [(11, 1), (0, 2), (4, 0)])):
        for source, target in moves:
            assert torch.equal(block(layers[index], target), block(before[index], source))


def test_rows_of_8_bits_are_copied_with_their_scales(device: torch.device) -> None:
    planes = MIMO_SPEC.planes[:3]
    kv = DeviceKvPool(planes, 40, BLOCK_TOKENS, torch.float8_e4m3fn, device, 12)
    assert kv.has_windows.count(True) in (1, 2)
    for tensor in kv.tensors:
        tensor.random_(0, 256, generator=torch.Generator(device).manual_seed(3))
    before = [tensor.clone() for tensor in kv.tensors]
    platform_of(device).synchronize()
    blocks = DeviceBlocks(kv.tensors, BLOCK_TOKENS, platform_of(device).host_memory(), kv.has_windows)
    assert blocks.block_bytes == BLOCK_TOKENS * sum(row_bytes(layer, "fp8") for layer in planes)
    half = DeviceKvPool(planes, 40, BLOCK_TOKENS, torch.float16, device, 12)
    others = DeviceBlocks(half.tensors, BLOCK_TOKENS, platform_of(device).host_memory(), half.has_windows)
    assert blocks.layout != others.layout, "a folder of one type is not read as the other"
    memory = blocks.new_memory(2)
    device_wait.wait_for([blocks.copy_out([30, 2], list(memory), [11, 4])], lambda: None)
    for tensor in kv.tensors:
        tensor.zero_()
    platform_of(device).synchronize()
    device_wait.wait_for([blocks.copy_in([30, 2], list(memory), [11, 4])], lambda: None)
    for tensor, held, has_window in zip(kv.tensors, before, kv.has_windows, strict=True):
        for block in (11, 4) if has_window else (30, 2):
            rows = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
            assert torch.equal(tensor[rows], held[rows])


@dataclass
class Slow:
    """A copy that is done when the test sets it."""

    is_done: bool = False

    def query(self) -> bool:
        return self.is_done


def test_a_step_waits_only_for_copies_of_blocks_that_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = DeviceBlocks(cache(torch.device("cpu")), BLOCK_TOKENS, platform_of(torch.device("cpu")).host_memory())
    memory = blocks.new_memory(4)
    slow = Slow()
    monkeypatch.setattr(blocks, "_event", lambda: slow)
    monkeypatch.setattr(device_wait, "LIMIT_S", 0.05)
    blocks.copy_out([3, 4], list(memory[:2]), [8, 9])
    with pytest.raises(EngineDeadError):
        blocks.before_writing([1], lambda: None, [9])
    blocks.before_writing([1, 2, 5], lambda: None, [7])
    with pytest.raises(EngineDeadError):
        blocks.before_writing([2, 4], lambda: None)
    threading.Timer(0.02, lambda: setattr(slow, "is_done", True)).start()
    monkeypatch.setattr(device_wait, "LIMIT_S", 10.0)
    blocks.before_writing([2, 4], lambda: None)


def test_a_start_continues_when_host_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, written: MakeTiny
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("1 GiB of host memory were refused")

    blocks = DeviceBlocks(cache(torch.device("cpu")), BLOCK_TOKENS, platform_of(torch.device("cpu")).host_memory())
    monkeypatch.setattr(blocks, "new_memory", refuse)
    gguf = open_gguf(written().gguf)
    assert _tiers(gguf, blocks, replace(SETTINGS, kv_host_bytes=1 << 30)) is None
    (record,) = (each for each in caplog.records if each.message == "kv_host_bytes is not used")
    assert "refused" in vars(record)["why"]


@pytest.mark.parametrize(("num_given", "num_taken"), [(4, 2), (1, 0)])
def test_a_tier_uses_half_of_available_memory_when_the_system_refuses_more(
    device: torch.device,
    num_given: int,
    num_taken: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocks = DeviceBlocks(cache(device), BLOCK_TOKENS, platform_of(device).host_memory())
    monkeypatch.setattr(host_tier, "PIECE_BYTES", 1 << 20)
    piece_blocks = (1 << 20) // blocks.block_bytes
    give, given = blocks.new_memory, []

    def new_memory(num_blocks: int) -> np.ndarray:
        given.append(num_blocks)
        if len(given) > num_given:
            raise MemoryError("1 MiB of host memory were refused")
        return give(num_blocks)

    monkeypatch.setattr(blocks, "new_memory", new_memory)
    if num_taken == 0:
        with pytest.raises(MemoryError, match="refused"):
            HostTier(blocks, 8 << 20)
    else:
        tier = HostTier(blocks, 8 << 20)
        assert tier.num_blocks == tier.most_storing == num_taken * piece_blocks
        (record,) = (each for each in caplog.records if each.message == "only a part of kv_host_bytes is used")
        assert vars(record)["taken_bytes"] == num_taken * piece_blocks * blocks.block_bytes
        assert "refused" in vars(record)["why"]


MakeCore = Callable[..., EngineCore]


def load(written: MakeTiny, device: torch.device, arch: str = "v3", **options: Any) -> HybridModel:
    torch.set_num_threads(1)
    on_cpu: dict[str, Any] = {"make_experts": FloatExperts, "kv_dtype": torch.float32}
    quant = "f32" if device.type == "cpu" else "q4_k"
    file = written(arch=arch, mla="split", quant=quant).gguf
    return load_hybrid(file, device, SETTINGS, **((on_cpu if device.type == "cpu" else {}) | options))


@pytest.fixture(scope="module")
def on_cpu(written: MakeTiny) -> HybridModel:
    return load(written, torch.device("cpu"))


@pytest.fixture
def make_core(on_cpu: HybridModel, tmp_path: Path) -> Iterator[MakeCore]:
    """A core with one model on the CPU; `host_blocks` and `on_disk` define the tiers of its cache."""
    model = on_cpu
    opened: list[EngineCore] = []

    def make(host_blocks: int = 0, *, on_disk: bool = False) -> EngineCore:
        model.cache_tiers = beside(model, host_blocks, tmp_path if on_disk else None)
        opened.append(EngineCore(model, with_tiers(scheduler_config(SETTINGS), model)))
        return opened[-1]

    yield make
    for core in opened:
        core.close()


def beside(model: HybridModel, host_blocks: int, folder: Path | None) -> CacheTiers:
    take, news = model.devices[0].platform.host_memory(), threading.Event()
    blocks = BlocksOfDevices([DeviceBlocks(own.kv.tensors, BLOCK_TOKENS, take) for own in model.devices], take)
    tiers: list[KvTier] = [HostTier(blocks, host_blocks * blocks.block_bytes)] if host_blocks else []
    if folder is not None:
        file = BlockFile(folder, "0" * 32, 400, blocks.block_bytes, BLOCK_TOKENS)
        tiers.append(DiskTier(file, blocks, 16, news.set))
    return CacheTiers(blocks, tiers, news)


def served(core: EngineCore, requests: Sequence[Request]) -> list[Generated]:
    """Close the core; the remaining blocks are on disk then."""
    replies = generate(core, requests)
    until_written(core)
    return replies


def talk(core: EngineCore, *, together: bool = False) -> list[Generated]:
    """Run four turns of four conversations; the cache holds only two of them."""
    rng = random.Random(3)
    text = [[rng.randrange(300) for _ in range(60)] for _ in range(4)]
    found: list[Generated] = []
    for _ in range(4):
        requests = [Request("test", tuple(each), SamplingParams(max_tokens=8, temperature=0.0)) for each in text]
        replies = served(core, requests) if together else [served(core, [each])[0] for each in requests]
        for each, reply in zip(text, replies, strict=True):
            each += [*reply.token_ids, *(rng.randrange(300) for _ in range(20))]
        found += replies
    return found


def texts(replies: list[Generated]) -> list[tuple[int, ...]]:
    return [reply.token_ids for reply in replies]


@pytest.fixture(scope="module")
def plain(on_cpu: HybridModel) -> list[tuple[int, ...]]:
    """The texts of `talk` with a cache without tiers."""
    on_cpu.cache_tiers = beside(on_cpu, 0, None)
    core = EngineCore(on_cpu, with_tiers(scheduler_config(SETTINGS), on_cpu))
    found = texts(talk(core))
    core.close()
    return found


ENOUGH = 400


@pytest.mark.parametrize(
    ("host_blocks", "on_disk"), [(ENOUGH, False), (20, True), (0, True), *if_long((ENOUGH, True))], ids=str
)
def test_tokens_are_the_same_and_prefixes_are_fetched_back(
    make_core: MakeCore, plain: list[tuple[int, ...]], host_blocks: int, on_disk: bool
) -> None:
    core = make_core(host_blocks, on_disk=on_disk)
    assert texts(talk(core)) == plain
    fetched = [tier.fetched_tokens for tier in core.stats().tiers]
    assert sum(fetched) > 500
    if host_blocks == 20:
        assert all(count > 0 for count in fetched), "blocks that the small host tier evicted are read from disk"
    elif on_disk and host_blocks:
        assert fetched[1] == 0, "blocks in host memory are not read from disk"
    core.check()


def test_concurrent_requests_get_the_same_tokens(make_core: MakeCore) -> None:
    plain = talk(make_core(), together=True)
    core = make_core(ENOUGH)
    assert texts(talk(core, together=True)) == texts(plain)
    assert sum(tier.fetched_tokens for tier in core.stats().tiers) > 500


def logprobs(core: EngineCore, seq: int, prompt: Sequence[int], max_tokens: int = 4) -> list[TokenLogprobs | None]:
    """The eight most probable tokens at each token of a greedy reply, with their log probabilities."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=8)
    core.add(seq, Request("test", tuple(prompt), params), 0)
    found: list[TokenLogprobs | None] = []
    while len(found) < max_tokens:
        found += [event.logprobs for event in core.step().events]
    until_written(core)
    return found


@pytest.mark.parametrize(
    ("arch", "host_blocks", "on_disk", "is_short", "has_prefill_lane"),
    spread(
        [
            ("v3", ENOUGH, False, False),
            ("v3", 0, True, False),
            ("glm5", ENOUGH, False, False),  # with index keys
            ("v3", ENOUGH, False, True),  # latents of 8 bits
            ("qwen3", 0, True, True),  # heads of 8 bits
        ],
        [False, True],
    ),
)
def test_logits_after_fetches_are_those_without_tiers(
    device: torch.device,
    written: MakeTiny,
    tmp_path: Path,
    arch: str,
    host_blocks: int,
    on_disk: bool,
    is_short: bool,
    has_prefill_lane: bool,
) -> None:
    """Results are bitwise equal, also on a GPU: both runs compute the same few tokens after the same blocks. With index
    keys, all positions are scored, and a quarter of them is selected."""
    short: dict[str, Any] = {"kv_dtype": torch.float8_e4m3fn} if is_short else {}
    model = load(written, device, arch, stream_from_tokens=12 if has_prefill_lane else 0, **short)
    model.cache_tiers = beside(model, host_blocks, tmp_path if on_disk else None)
    settings = replace(SETTINGS, stream_from_tokens=12 if has_prefill_lane else 0)
    config = with_tiers(scheduler_config(settings), model)
    if has_prefill_lane:
        config = with_changes(config, prefill_costs=[(1, 1.0)])
    core = EngineCore(model, config)
    prompt = list(range(10, 130))
    logprobs(core, 1, prompt)
    kept = logprobs(core, 2, prompt)
    assert core.stats().tiers[0].fetched_tokens == 0
    for other in range(4):
        logprobs(core, 10 + other, range(140 + other, 260 + other))
    before = core.stats().tiers[0].fetched_tokens
    assert logprobs(core, 3, prompt) == kept
    assert core.stats().tiers[0].fetched_tokens == before + 7 * BLOCK_TOKENS
    core.check()
    core.close()
