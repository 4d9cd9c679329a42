"""Heads that are divided among devices give the averages of one device.

Without GPUs, the devices are the CPU's memory, and an operation on tensors of two devices fails."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ballast.engine.startup.build import EngineSettings
from ballast.model.batch import padding
from ballast.model.hybrid.attention import expanded_kernels, triton_expanded
from ballast.model.hybrid.attention.divided_heads import DividedHeads, HeadsDevice
from ballast.model.hybrid.attention.division_gain import division_pays
from ballast.model.hybrid.attention.expanded import (
    ExpandedAttention,
    ExpandedKernels,
    ExpandedSizes,
    ExpandedWeights,
    PlainExpandedKernels,
)
from ballast.model.hybrid.attention.flashinfer_expanded import FlashinferExpandedKernels
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.attention.triton_expanded import TritonExpandedKernels
from ballast.model.hybrid.copies import peer_speed
from ballast.model.hybrid.copies.device_sender import DeviceSender
from ballast.model.hybrid.copies.peer_speed import peer_gigabyte_s
from ballast.model.hybrid.linear import FloatLinear
from ballast.model.hybrid.load_stages import divided_attention
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.steps.slices import SliceSizes
from ballast.model.metadata import read_spec
from ballast.weights.gguf import open_gguf
from devkit.kernels.attention_cases import attention_case
from devkit.kernels.interpreted import interpreted
from devkit.models.cpu_backend import CpuBackend, copied
from devkit.models.cpu_platform import CpuPlatform
from devkit.models.float_hybrid import load_hybrid
from devkit.models.simulated_devices import SimulatedDevices, owner_of
from devkit.models.written import MakeTiny
from devkit.oracles.divergence import divergences, log_probabilities

SMALL = ExpandedSizes(num_heads=5, rank=32, nope_dim=20, rope_dim=8, v_dim=12, scale=0.2, block_tokens=16)
R1 = ExpandedSizes(num_heads=128, rank=512, nope_dim=128, rope_dim=64, v_dim=128, scale=0.07, block_tokens=32)
NVLINK_S, PCIE_S = 1 / 300, 1 / 25
"""Seconds per gigabyte."""
CPU = torch.device("cpu")
GPUS = torch.device("cuda:0"), torch.device("cuda:1")
MakeKernels = Callable[[ExpandedSizes, torch.Tensor], ExpandedKernels]


def simulated_devices(count: int) -> list[torch.device]:
    return [torch.device("cpu", number) for number in range(count)]


def senders(devices: Sequence[torch.device]) -> list[DeviceSender]:
    return [DeviceSender(platform_of(device), copied, devices, 0) for device in devices]


class Case:
    """The last tokens of a request on the first device. Its context is attended to in pieces."""

    def __init__(
        self,
        sizes: ExpandedSizes,
        make: MakeKernels,
        dtype: torch.dtype,
        devices: Sequence[torch.device],
        *,
        num_tokens: int = 30,
        length: int = 100,
        piece: int = 33,
        is_short: bool = False,
    ) -> None:
        self.counts = [torch.zeros((), dtype=torch.int64, device=device) for device in devices]
        self.members = [
            HeadsDevice(
                device, platform_of(device).active, sender, ExpandedAttention(sizes, make(sizes, counted), piece)
            )
            for device, sender, counted in zip(devices, senders(devices), self.counts, strict=True)
        ]
        first = devices[0]
        rng = torch.Generator().manual_seed(1)
        shapes = (sizes.rank, sizes.nope_dim), (sizes.v_dim, sizes.rank)
        k_up, v_up = (torch.randn(sizes.num_heads, *shape, generator=rng) / math.sqrt(shape[1]) for shape in shapes)
        latent = LatentSizes(sizes.num_heads, sizes.rank, sizes.rope_dim, sizes.scale, sizes.block_tokens, is_short)
        case = attention_case(latent, [num_tokens], [length], CPU if first.type == "cpu" else first, dtype)
        query = torch.randn(num_tokens, sizes.num_heads, sizes.nope_dim + sizes.rope_dim, generator=rng) * sizes.scale
        own = self.members[0].attention
        matrices = own.weights(FloatLinear(k_up), FloatLinear(v_up), dtype, CPU)
        self.weights = ExpandedWeights(matrices.keys.to(first), matrices.values.to(first))
        self.query, self.cache = query.to(dtype).to(first), case.cache.to(first)
        self.step = case.step

    def alone(self) -> torch.Tensor:
        return self.members[0].attention(self.query, self.weights, self.cache, self.step)

    def divided(self, *, pays: bool = True) -> torch.Tensor:
        attend = DividedHeads(self.members[0], self.members[1:], lambda *_: pays)
        return attend(self.query, self.weights, self.cache, self.step)


@pytest.mark.parametrize(
    ("num_devices", "elsewhere", "is_short"),
    [(2, [3], False), (2, [3], True), (3, [2, 2], False), (8, [1, 1, 1, 1], False)],
)
def test_devices_give_the_averages_of_one(
    num_devices: int, elsewhere: list[int], is_short: bool, simulated: SimulatedDevices
) -> None:
    """The others get queries and return averages of their heads, and get each row of the context once. `elsewhere`: the
    number of their heads; a device without any gets nothing."""
    case = Case(SMALL, PlainExpandedKernels, torch.float32, simulated_devices(num_devices), is_short=is_short)
    simulated.crossings.clear()
    found = case.divided()
    torch.testing.assert_close(found, case.alone(), rtol=1e-5, atol=1e-5)
    assert owner_of(found) == 0
    sent = [shape for source, _, shape in simulated.crossings if source == 0]
    returned = [shape for _, target, shape in simulated.crossings if target == 0]
    assert returned == [(30, count, 12) for count in elsewhere]
    assert [shape for shape in sent if len(shape) == 3] == [(30, count, 28) for count in elsewhere]
    rows = [(length, case.cache.shape[1]) for length in (30, 33, 33, 4) for _ in elsewhere]
    assert sent[-len(rows) :] == rows


def test_triton_s_kernels_compute_each_head_alike_on_any_device(
    simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_expanded, "expanded_kernels", interpreted(expanded_kernels, monkeypatch))
    case = Case(SMALL, TritonExpandedKernels, torch.float16, simulated_devices(2))
    torch.testing.assert_close(case.divided(), case.alone(), rtol=1e-3, atol=1e-3)


def test_short_slices_stay_on_their_device(simulated: SimulatedDevices) -> None:
    case = Case(SMALL, PlainExpandedKernels, torch.float32, simulated_devices(2))
    simulated.crossings.clear()
    assert torch.equal(case.divided(pays=False), case.alone())
    assert simulated.crossings == []


def test_a_device_uses_its_latest_kernels_and_its_own_count(simulated: SimulatedDevices) -> None:
    """flashinfer's may be ready after the server is."""

    class Doubled(PlainExpandedKernels):
        def values(self, values: torch.Tensor) -> torch.Tensor:
            return super().values(values) * 2

    case = Case(SMALL, PlainExpandedKernels, torch.float32, simulated_devices(2))
    case.members[1].attention = ExpandedAttention(SMALL, Doubled(SMALL, case.counts[1]), 33)
    case.weights.values[0, -1] = math.inf
    found, alone = case.divided(), case.alone()
    torch.testing.assert_close(found[:, :2], alone[:, :2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, 2:4], 2 * alone[:, 2:4], rtol=1e-5, atol=1e-5)
    assert int(case.counts[1]) > 0


def test_wrong_averages_of_other_devices_are_found(simulated: SimulatedDevices) -> None:
    class Late(PlainExpandedKernels):
        """Returns averages before they are computed."""

        def attend(self, *args: torch.Tensor, is_causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
            average, weight = super().attend(*args, is_causal=is_causal)
            return torch.zeros_like(average), weight

    case = Case(SMALL, PlainExpandedKernels, torch.float32, simulated_devices(2))
    heads = DividedHeads(case.members[0], case.members[1:], lambda *_: True)
    assert heads.why_wrong(torch.float32) is None
    case.members[1].attention = ExpandedAttention(SMALL, Late(SMALL, case.counts[1]), 33)
    reason = heads.why_wrong(torch.float32)
    assert reason is not None
    assert "other devices' averages differ" in reason


def test_a_kernel_gets_no_odd_number_of_heads() -> None:
    """Triton compiles the kernels again for numbers that are no multiple of 16."""
    assert divided_heads_of(replace(R1, num_heads=128), 3) == [(0, 32), (32, 80), (80, 128)]
    assert divided_heads_of(replace(R1, num_heads=64), 8) == [(0, 16), (16, 32), (32, 48), (48, 64)]
    assert divided_heads_of(replace(R1, num_heads=20), 2) == [(0, 10), (10, 20)]


def divided_heads_of(sizes: ExpandedSizes, num_devices: int) -> list[tuple[int, int]]:
    case = Case(replace(sizes, rank=16, nope_dim=1, v_dim=1), PlainExpandedKernels, torch.float32, [CPU])
    return DividedHeads(case.members[0], case.members * (num_devices - 1), lambda *_: True)._bounds


def test_division_pays_for_long_contexts_and_fast_links() -> None:
    assert division_pays(R1, NVLINK_S, 2, 8192, 0)
    assert division_pays(R1, PCIE_S, 2, 8192, 90_000)
    assert not division_pays(R1, PCIE_S, 2, 8192, 0)
    assert not division_pays(R1, NVLINK_S, 2, 1024, 0)
    assert division_pays(R1, 0.0, 2, 1, 0)
    first = next(n for n in range(0, 100_000, 1000) if division_pays(R1, PCIE_S, 2, 8192, n))
    assert all(division_pays(R1, PCIE_S, 2, 8192, n) == (n >= first) for n in range(0, 100_000, 1000))


LONG = SliceSizes(tokens=5, long_tokens=13, long_from=20)
SETTINGS = EngineSettings(
    cache_lens=144,
    max_batch_size=4,
    max_new_tokens=40,
    chunk_size=24,
    prefill_chunk_size=48,
    max_queue=16,
    block_tokens=16,
)
SUM_ORDER = 1e-4
"""Largest difference of logits between two orders of additions in float32."""
MAX_DIVERGENCE = 5e-5
"""As in test_model.py."""


class Model:
    """A model of latent attention whose layers from `split` on are on other devices."""

    def __init__(self, file: Path, *split: int, devices: Sequence[torch.device] = (CPU,)) -> None:
        kv_dtype = torch.float32 if devices[0] == CPU else torch.float16
        self.hybrid = load_hybrid(
            file,
            devices[0],
            SETTINGS,
            split=split,
            others=devices[1:],
            kv_dtype=kv_dtype,
            slices=LONG,
            stream_from_tokens=30,
        )

    def logits(self) -> np.ndarray:
        """Logits of a prompt of 40 tokens, which has four slices of 10."""
        batch = padding(40, SETTINGS.block_tokens)
        ids, slots = np.arange(40, dtype=np.int32), batch.positions + np.int32(SETTINGS.block_tokens)
        blocks = np.arange(1, batch.kv_indices.size + 1, dtype=np.int32)
        batch = replace(batch, token_ids=ids, slots=slots, kv_indices=blocks)
        return self.hybrid.forward(batch, lambda: None).copy()


def test_every_pair_of_devices_is_measured(simulated: SimulatedDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_speed, "_BYTES", 1 << 10)
    devices = simulated_devices(3)
    assert peer_gigabyte_s(list(zip(map(platform_of, devices), senders(devices), strict=True))) > 0
    pairs = itertools.permutations(range(3), 2)
    assert simulated.crossings == [(*pair, (1 << 10,)) for pair in pairs for _ in range(1 + peer_speed._TIMED)]


@pytest.mark.gpu2
@pytest.mark.parametrize(
    "make", [TritonExpandedKernels, pytest.param(FlashinferExpandedKernels, marks=pytest.mark.flashinfer)]
)
@torch.inference_mode()
def test_two_gpus_give_the_averages_of_one_with_less_memory(make: MakeKernels) -> None:
    """Every time the same bits, while both compute other work. The plan counts the memory of one."""
    case = Case(R1, make, torch.float16, GPUS, num_tokens=2048, length=6000, piece=2048)
    found, expected = case.divided(), case.alone()
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)
    [alone, _], divided = peak_bytes(case.alone), peak_bytes(case.divided)
    assert max(divided) <= alone
    busy = [(torch.cuda.Stream(device), torch.randn(2048, 2048, device=device)) for device in GPUS]
    for number in range(30):
        for stream, x in busy[: number % 3]:
            with torch.cuda.stream(stream):
                for _ in range(20):
                    x @ x
        assert torch.equal(case.divided(), found), f"time {number}"


def peak_bytes(attend: Callable[[], torch.Tensor]) -> list[int]:
    """By GPU, the most bytes that it allocates in addition."""
    for device in GPUS:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    before = [torch.cuda.memory_allocated(device) for device in GPUS]
    attend()
    return [torch.cuda.max_memory_allocated(device) - own for device, own in zip(GPUS, before, strict=True)]


@pytest.mark.gpu2
def test_copies_between_two_gpus_take_a_plausible_time() -> None:
    measured = peer_gigabyte_s(list(zip(map(platform_of, GPUS), senders(GPUS), strict=True)))
    assert 1e-3 < measured < 1, "1 to 1,000 GB/s"


@pytest.mark.parametrize("reaches", [True, False])
def test_a_model_divides_the_heads_of_long_prompts(
    written: MakeTiny, reaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(arch="v3", mla="split", quant="f32").gguf
    spec = read_spec(open_gguf(file), None)
    [mixer] = spec.attentions
    monkeypatch.setattr(CpuPlatform, "reaches", lambda *_: reaches)
    expected = Model(file).logits()
    with SimulatedDevices() as simulated:
        model = Model(file, 1, 3)
        simulated.crossings.clear()
        np.testing.assert_allclose(model.logits(), expected, rtol=SUM_ORDER, atol=SUM_ORDER)
    returned = [shape for _, _, shape in simulated.crossings if len(shape) == 3 and shape[2] == mixer.v_dim]
    num_slices, num_others = 4, 2
    assert len(returned) == (spec.num_layers * num_slices * num_others if reaches else 0)


def test_a_model_divides_only_what_pays(written: MakeTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, ...]] = []

    def refused(sizes: ExpandedSizes, *given: float) -> bool:
        seen.append(given)
        return False

    monkeypatch.setattr(divided_attention, "division_pays", refused)
    with SimulatedDevices() as simulated:
        model = Model(written(arch="v3", mla="split", quant="f32").gguf, 2)
        simulated.crossings.clear()
        model.logits()
    assert not [shape for _, _, shape in simulated.crossings if len(shape) == 3]
    num_devices, gigabyte_s = 2, 0.0
    assert seen[:4] == [(gigabyte_s, num_devices, 10, num_before) for num_before in (0, 10, 20, 30)]


def test_a_model_divides_nothing_if_a_device_gives_other_averages(
    written: MakeTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such instruction\nand more")

    monkeypatch.setattr(DividedHeads, "why_wrong", broken)
    with SimulatedDevices() as simulated:
        model = Model(written(arch="v3", mla="split", quant="f32").gguf, 2)
        simulated.crossings.clear()
        model.logits()
    assert not [shape for _, _, shape in simulated.crossings if len(shape) == 3]
    assert model.hybrid._off.reasons["divided_attention"] == "ValueError: no such instruction"


def test_faster_kernels_of_a_device_also_compute_heads_for_others(
    written: MakeTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flashinfer's may be ready after the server is."""
    late: list[tuple[Callable[[ExpandedAttention], None], torch.Tensor]] = []
    heads: list[tuple[int | None, int]] = []

    class Late:
        def use_in(self, lanes: object, use_expanded: Any, num_saturated: torch.Tensor, *_: object) -> None:
            late.append((use_expanded, num_saturated))

    class Recorded(PlainExpandedKernels):
        def attend(
            self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool
        ) -> tuple[torch.Tensor, torch.Tensor]:
            heads.append((owner_of(query), query.shape[1]))
            return super().attend(query, keys, values, is_causal=is_causal)

    monkeypatch.setattr(CpuBackend, "late_attention", lambda *_: Late())
    with SimulatedDevices():
        model = Model(written(arch="v3", mla="split", quant="f32").gguf, 2)
        expected = model.logits()
        kind = model.hybrid.devices[1].prefill_attention.kinds[0]
        use_expanded, num_saturated = late[1]
        use_expanded(ExpandedAttention(kind._expanded.sizes, Recorded(kind._expanded.sizes, num_saturated), 13))
        np.testing.assert_array_equal(model.logits(), expected)
    num_pieces = 1 + 2 + 3 + 4
    num_layers = len(model.hybrid.layers.weights.layers)
    assert heads == [(1, kind._expanded.sizes.num_heads // 2)] * (num_pieces * num_layers)


@pytest.mark.gpu2
def test_a_model_on_two_gpus_gives_the_logits_of_one(written: MakeTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if heads of short slices are divided."""
    monkeypatch.setattr(divided_attention, "division_pays", lambda *_: True)
    file = written(arch="v3", mla="split", quant="q4_k").gguf
    one, two = Model(file, devices=GPUS[:1]), Model(file, 2, devices=GPUS)
    expected = log_probabilities(one.logits())
    for _ in range(10):
        assert divergences(expected, log_probabilities(two.logits())).max() <= MAX_DIVERGENCE
