"""Layers with a window keep only their windows in a device's cache, in one lane and in two, with the same texts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ballast.engine.core import EngineCore
from ballast.engine.runner import with_changes, with_tiers
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.model.batch import Batch
from ballast.model.hybrid.copies.blocks_of_devices import BlocksOfDevices
from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
from ballast.model.hybrid.model import HybridModel
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.steps.slices import SliceSizes
from ballast.model.hybrid.steps.step import Step
from ballast.model.tiers.block_file import BlockFile
from ballast.model.tiers.disk_tier import DiskTier
from ballast.model.tiers.host_tier import HostTier
from ballast.model.tiers.tier import CacheTiers
from devkit.generate import Generated
from devkit.long import if_long, spread
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import MakeTiny
from devkit.turns import converse, texts

CPU = torch.device("cpu")
SETTINGS = EngineSettings(
    cache_lens=2048,
    max_batch_size=3,
    max_new_tokens=40,
    chunk_size=24,
    prefill_chunk_size=48,
    max_queue=32,
    block_tokens=4,
)
PREFILL_FROM = 12
WINDOWED = ("gptoss", "step35", "mimov2")


@pytest.fixture(scope="module", params=WINDOWED)
def file(request: pytest.FixtureRequest, written: MakeTiny) -> Path:
    return written(arch=request.param, mla="split", quant="f32").gguf


def load(
    file: Path, settings: EngineSettings = SETTINGS, *, keeps_windows: bool, split: Sequence[int] = ()
) -> HybridModel:
    """In float32; prompts of PREFILL_FROM tokens and more are streamed."""
    return load_hybrid(
        file,
        CPU,
        settings,
        make_experts=FloatExperts,
        keeps_windows=keeps_windows,
        split=split,
        kv_dtype=torch.float32,
        stream_from_tokens=PREFILL_FROM,
    )


def core_of(model: HybridModel, settings: EngineSettings = SETTINGS, *, lanes: int) -> EngineCore:
    config = with_tiers(scheduler_config(replace(settings, stream_from_tokens=PREFILL_FROM)), model)
    return EngineCore(model, with_changes(config, prefill_costs=[(1, 1.0)]) if lanes == 2 else config)


def conversations(core: EngineCore) -> list[Generated]:
    """Two turns of five, several windows long."""
    return converse(core, num_conversations=5, num_turns=2, num_common=60, longest=80, max_tokens=10)


@pytest.fixture(scope="module")
def expected(file: Path) -> list[tuple[int, ...]]:
    """With all tokens in all layers."""
    found = texts(conversations(core_of(load(file, keeps_windows=False), lanes=1)))
    assert len(set(found)) > len(found) // 2, "the texts are too similar to prove anything"
    return found


@pytest.mark.parametrize(("file", "lanes"), spread(WINDOWED, [1, 2]), indirect=["file"], scope="module")
def test_texts_are_the_same_if_only_windows_are_kept(file: Path, expected: list[tuple[int, ...]], lanes: int) -> None:
    model = load(file, keeps_windows=True)
    assert model.window is not None
    sizes = [len(tensor) // SETTINGS.block_tokens - 1 for tensor in model.kv_tensors]
    assert set(sizes) == {512, model.window[1]}
    assert model.window[1] < 512 // 3
    assert [size < 512 for size in sizes] == model.kv_has_windows
    replies = conversations(core_of(model, lanes=lanes))
    assert texts(replies) == expected
    assert sum(reply.cached_tokens for reply in replies) > 0
    assert model.device_counts.streamed_steps > 3


# Families differ in what attention computes, not in which blocks it reads.
@pytest.mark.parametrize(
    ("file", "lanes", "split"),
    [
        ("gptoss", 1, []),
        ("step35", 2, []),
        ("mimov2", 2, [1]),
        *if_long(*(("gptoss", 2, split) for split in ([], [1])), ("step35", 1, []), ("step35", 2, [1])),
        *if_long(("mimov2", 1, []), ("mimov2", 2, [])),
    ],
    indirect=["file"],
    scope="module",  # so that cases of a file follow each other
)
def test_tiers_store_and_restore_windows(
    file: Path, expected: list[tuple[int, ...]], tmp_path: Path, lanes: int, split: list[int]
) -> None:
    # Too small for the conversations.
    settings = replace(SETTINGS, cache_lens=320, chunk_size=12, prefill_chunk_size=24)
    model = load(file, settings, keeps_windows=True, split=split)
    assert model.window is not None
    take = platform_of(CPU).host_memory()
    blocks = BlocksOfDevices(
        [DeviceBlocks(own.kv.tensors, settings.block_tokens, take, own.kv.has_windows) for own in model.devices], take
    )
    news = threading.Event()
    on_disk = BlockFile(tmp_path, "0" * 32, 2000, blocks.block_bytes, settings.block_tokens)
    tiers = [HostTier(blocks, 100 * blocks.block_bytes), DiskTier(on_disk, blocks, 64, news.set)]
    model.cache_tiers = CacheTiers(blocks, tiers, news)
    core = core_of(model, settings, lanes=lanes)
    assert texts(conversations(core)) == expected
    assert sum(tier.fetched_tokens for tier in core.stats().tiers) > 0
    core.close()


def test_slices_of_a_step_have_the_tables_of_windows() -> None:
    """Two requests of 5 and 3 blocks of 4 tokens, the first with 8 new tokens."""
    blocks, windows = np.array([1, 2, 3, 4, 5, 9, 8, 7], np.int32), np.array([0, 0, 6, 5, 4, 0, 2, 3], np.int32)
    positions = np.array([*range(12, 20), 8, 9], np.int32)
    of_tokens = np.array([3] * 4 + [4] * 4 + [7] * 2)

    def slots(ids: np.ndarray) -> np.ndarray:
        found: np.ndarray = ids[of_tokens] * np.int32(4) + positions % np.int32(4)
        return found.astype(np.int32)

    batch = Batch(
        token_ids=np.zeros(10, np.int32),
        positions=positions,
        slots=slots(blocks),
        query_indptr=np.array([0, 8, 10], np.int32),
        kv_indptr=np.array([0, 5, 8], np.int32),
        kv_indices=blocks,
        sampled=np.array([9]),
        window_slots=slots(windows),
        window_indices=windows,
    )
    step = Step.from_batch(batch, CPU, SliceSizes(tokens=6, long_from=None))
    assert step.windows is not None
    assert step.windows.slots.tolist() == batch.window_slots.tolist()
    assert step.windows.requests.blocks.tolist() == [[0, 0, 6, 5, 4], [0, 2, 3, 0, 0]]
    assert [part.step.requests.blocks.tolist() for part in step.windows.slices] == [
        [[0, 0, 6, 5, 4]],
        [[0, 0, 6, 5, 4], [0, 2, 3, 0, 0]],
    ]
    for part, plain in zip(step.windows.slices, step.slices, strict=True):
        assert part.step.slots.tolist() == batch.window_slots[part.begin : part.end].tolist()
        assert part.step.positions.tolist() == plain.step.positions.tolist()
        assert part.step.requests.place == plain.step.requests.place
