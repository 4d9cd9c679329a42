"""The kernels of attention to windows and compressed entries against torch's operations, by Triton's interpreter, and
on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ballast.model.batch import Batch
from ballast.model.hybrid.compressed import (
    entry_attention_kernels,
    entry_kernels,
    gpu,
    triton_compression,
    window_kernels,
)
from ballast.model.hybrid.compressed.compression import CompressedCache, Compression, EntryTokens, Rotation
from ballast.model.hybrid.compressed.gpu import Trial, compression_kernels
from ballast.model.hybrid.compressed.plain import PlainCompression
from ballast.model.hybrid.compressed.triton_compression import DeviceLimits, TritonCompression
from ballast.model.hybrid.recurrent.state_pool import DeviceStatePool, EntryStates
from ballast.model.hybrid.sparse import choice_kernels, triton_choice
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.compressed import CompressedSpec, EntryIndexSpec
from ballast.model.layers.positions import RopeSpec
from ballast.model.spec import ModelSpec
from devkit.kernels.interpreted import interpreted
from devkit.models.specs.deepseek4 import V4_FLASH_SPEC, V4_PRO_SPEC, V4_SPEC

CLOSE = {"rtol": 2e-4, "atol": 2e-5}
BLOCK_TOKENS, NUM_SLOTS, NUM_POSITIONS = 32, 12, 160
WINDOWS = CompressedSpec(
    num_heads=3,
    head_dim=48,
    q_lora_rank=16,
    rope=RopeSpec(dim=16, theta=10000.0, yarn=None),
    window=8,
    ratio=0,
    output_groups=1,
    output_rank=8,
)
MIXERS = {
    "windows": WINDOWS,
    "all entries": replace(WINDOWS, ratio=32),
    "selected entries": replace(WINDOWS, ratio=4, index=EntryIndexSpec(num_heads=2, key_dim=32, top_k=3)),
}
# By row: the first position, tokens, the slots before and after, and the states left before: a number of tokens, and a
# slot. The first rows have one token each.
ROWS = [
    (7, 1, 1, 1, []),
    (31, 1, 2, 3, []),
    (30, 11, 4, 4, [(1, 5), (2, 6)]),
    (0, 37, 0, 7, [(33, 8)]),
    (57, 2, 9, 9, []),
    (96, 33, 10, 11, []),
]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    for module in (entry_kernels, entry_attention_kernels, window_kernels):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(triton_compression, name, interpreted(module, monkeypatch))
    monkeypatch.setattr(triton_choice, "choice_kernels", interpreted(choice_kernels, monkeypatch))
    return torch.device("cpu")


def step_of(rows: Sequence[tuple[int, int, int, int, list[tuple[int, int]]]], device: torch.device) -> Step:
    """Each row has blocks of its own, for all positions."""
    counts = [row[1] for row in rows]
    positions = np.concatenate([np.arange(first, first + count) for first, count, *_ in rows]).astype(np.int32)
    num_blocks = NUM_POSITIONS // BLOCK_TOKENS
    owners = np.repeat(np.arange(len(rows)), counts)
    blocks = 1 + owners * num_blocks + positions // BLOCK_TOKENS
    saves = [save for row in rows for save in row[4]]
    tables = (
        [row[2] for row in rows],
        [row[3] for row in rows],
        np.cumsum([0, *(len(row[4]) for row in rows)]),
        [end for end, _ in saves],
        [slot for _, slot in saves],
    )
    batch = Batch(
        token_ids=np.zeros(len(positions), np.int32),
        positions=positions,
        slots=(blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS).astype(np.int32),
        query_indptr=np.cumsum([0, *counts]).astype(np.int32),
        kv_indptr=(np.arange(len(rows) + 1) * num_blocks).astype(np.int32),
        kv_indices=np.arange(1, 1 + len(rows) * num_blocks, dtype=np.int32),
        sampled=np.zeros(1, np.int64),
        states=tuple(np.array(table, np.int32) for table in tables),
    )
    return Step.from_batch(batch, device, has_states=True)


def rotation_on(device: torch.device, num_positions: int = NUM_POSITIONS, num_pairs: int = 8) -> Rotation:
    angles = torch.outer(torch.arange(num_positions), 0.5 ** torch.arange(num_pairs)).float()
    return Rotation(angles.cos().to(device), angles.sin().to(device))


class Case:
    """A layer's operations on random numbers, with all results."""

    def __init__(self, mixer: CompressedSpec, step: Step, kv_dtype: torch.dtype, device: torch.device) -> None:
        """Slot 0 of states must not be read."""
        rng = torch.Generator().manual_seed(3)

        def some(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=rng).to(device)

        self._mixer, self._step, num_tokens = mixer, step, len(step.positions)
        self.rotation = rotation_on(device)
        self._heads, self.key = some(num_tokens, 3, 48), some(num_tokens, 60)[:, :48]
        self.norm, self._sinks = some(48), some(3)
        self._tokens = EntryTokens(
            some(num_tokens, 200)[:, : mixer.entry_columns],
            5 * some(num_tokens, mixer.entry_columns),
            some(max(1, mixer.ratio), mixer.entry_columns),
            some(48),
        )
        num_slots = (1 + len(ROWS) * NUM_POSITIONS // BLOCK_TOKENS) * BLOCK_TOKENS
        planes = [some(num_slots, plane.width).to(kv_dtype) for plane in mixer.planes]
        layer = replace(V4_SPEC.layers[0], mixer=mixer)
        [states] = DeviceStatePool([layer], V4_SPEC.hidden, NUM_SLOTS, device).layers
        assert isinstance(states, EntryStates)
        for state in states:
            state.copy_(some(*state.shape))
        for state in states[1:]:  # a sum of 0 holds no token
            state[:, :, 1] = state[:, :, 1].abs() * (state[:, :, 1] > -0.5)
            state[:, :, 2] *= state[:, :, 1]
        for state in states:
            state[0] = torch.nan
        self.cache = CompressedCache(
            planes[0] if planes else some(num_slots, 0), planes[1] if len(planes) > 1 else None, states
        )
        self._index: tuple[torch.Tensor, torch.Tensor, EntryTokens] | None = None
        if mixer.index is not None:
            tokens = EntryTokens(some(num_tokens, 64), some(num_tokens, 64), some(mixer.ratio, 64), some(32))
            self._index = some(num_tokens, 2, 32), some(num_tokens, 2), tokens

    def run(self, compression: Compression) -> list[torch.Tensor]:
        """Keys, what tokens attend to, and which entries; then the states and the cache."""
        step, cache, chosen = self._step, self.cache, None
        key = compression.key(self.key, self.norm, step)
        if self._mixer.ratio:
            compression.keep_entries(self._tokens, cache.states[1], cache.entries, step)
        if self._index is not None:
            assert cache.index_keys is not None
            query, weights, tokens = self._index
            compression.keep_entries(tokens, cache.states[2], cache.index_keys, step)
            chosen = compression.choose(query, weights, cache.index_keys, step)
        query = compression.queries(self._heads, step)
        found = [key, compression.attend(query, key, cache, chosen, self._sinks, step)]
        compression.keep_window(key, cache.window, step)
        if chosen is not None:
            num_seen = (step.positions[:, None] + 1) // self._mixer.ratio
            found.append(chosen.where(torch.arange(3, device=chosen.device) < num_seen, -1))
        return [*found, *cache.states, cache.entries, *([] if cache.index_keys is None else [cache.index_keys])]


def both(
    mixer: CompressedSpec, step: Step, kv_dtype: torch.dtype, device: torch.device, num_processors: int = 4
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    cases = [Case(mixer, step, kv_dtype, device) for _ in range(2)]
    given = mixer, BLOCK_TOKENS, 1e-6, cases[0].rotation, kv_dtype
    limits = DeviceLimits(227 << 10, num_processors)
    return cases[0].run(TritonCompression(*given, limits)), cases[1].run(PlainCompression(*given))


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [*((name, torch.float32) for name in MIXERS), ("selected entries", torch.float16)]
)
def test_kernels_give_the_results_of_torchs_operations(device: torch.device, name: str, kv_dtype: torch.dtype) -> None:
    found, expected = both(MIXERS[name], step_of(ROWS, device), kv_dtype, device)
    close = CLOSE if kv_dtype == torch.float32 else {"rtol": 5e-3, "atol": 5e-3}
    assert all(each.isfinite().all() for each in expected[:2])
    for own, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(own, plain, **close, equal_nan=True)


@pytest.mark.parametrize("name", ["all entries", "selected entries"])
def test_single_tokens_are_divided_among_programs(device: torch.device, name: str) -> None:
    rows = [(first, 1, slot, slot, []) for slot, first in enumerate((127, 3), 1)]
    found, expected = both(MIXERS[name], step_of(rows, device), torch.float32, device, num_processors=64)
    for own, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(own, plain, **CLOSE, equal_nan=True)


def test_numbers_too_large_for_the_cache_are_clamped_and_counted(device: torch.device) -> None:
    mixer, step = MIXERS["all entries"], step_of(ROWS, device)
    case = Case(mixer, step, torch.float16, device)
    given = mixer, BLOCK_TOKENS, 1e-6, case.rotation, torch.float16
    counts = []
    for compression in (TritonCompression(*given, DeviceLimits(227 << 10, 4)), PlainCompression(*given)):
        key = compression.key(case.key, 6e4 * case.norm.abs(), step)
        assert key.abs().max() == 65504.0
        counts.append(int(compression.num_saturated))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.float32])
def test_correct_kernels_pass_the_check_at_start(device: torch.device, name: str, kv_dtype: torch.dtype) -> None:
    given = MIXERS[name], BLOCK_TOKENS, 1e-6, rotation_on(device), kv_dtype
    assert Trial(*given).why_wrong(TritonCompression(*given, DeviceLimits(227 << 10, 4))) is None


def test_correct_kernels_pass_the_check_if_positions_do_not_fill_a_window(device: torch.device) -> None:
    mixer = MIXERS["windows"]
    given = mixer, BLOCK_TOKENS, 1e-6, rotation_on(device, mixer.window - 1), torch.float16
    assert Trial(*given).why_wrong(TritonCompression(*given, DeviceLimits(227 << 10, 4))) is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("key", "keys differ from the plain implementation's by"),
        ("attend", "attention differ"),
        ("keep_window", "windows differ"),
        ("keep_entries", "entries differ"),
        ("choose", "of 3 selected entries are not those with the highest scores"),
    ],
)
def test_incorrect_kernels_are_detected_at_start(device: torch.device, wrong: str, reason: str) -> None:
    given = MIXERS["selected entries"], BLOCK_TOKENS, 1e-6, rotation_on(device), torch.float32
    compression = TritonCompression(*given, DeviceLimits(227 << 10, 4))
    right = getattr(compression, wrong)

    def other(*arguments: Any) -> Any:
        if wrong.startswith("keep"):
            return None
        found = right(*arguments)
        return found - 3 if wrong == "choose" else found * 1.2

    setattr(compression, wrong, other)
    found = Trial(*given).why_wrong(compression)
    assert found is not None
    assert reason in found


def test_kernels_that_do_not_compile_end_the_start(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("PTX is not supported\nand more")

    monkeypatch.setattr(gpu, "limits_of", lambda _: DeviceLimits(227 << 10, 4))
    monkeypatch.setattr(TritonCompression, "attend", refused)
    given = MIXERS["windows"], BLOCK_TOKENS, 1e-6, rotation_on(device), torch.float16
    with pytest.raises(ValueError, match=r"does not work on this GPU: .*PTX is not supported; use --device cpu"):
        compression_kernels(*given)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [V4_SPEC, V4_FLASH_SPEC, V4_PRO_SPEC], ids=["tiny", "Flash", "Pro"])
@pytest.mark.parametrize("num_positions", [16, 1000, 100_000])
def test_kernels_of_published_sizes_pass_the_check_at_start(spec: ModelSpec, num_positions: int) -> None:
    for mixer in spec.attentions:
        assert isinstance(mixer, CompressedSpec)
        rotation = rotation_on(torch.device("cuda:0"), num_positions, mixer.rope.dim // 2)
        compression_kernels(mixer, 64, spec.rms_eps, rotation, torch.float16)
