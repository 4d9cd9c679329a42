"""Experts in device memory that follow use: no step reads a slot that is being overwritten, and results stay the same.
The device is torch's CPU device, with a queue that a test advances."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast.errors import EngineDeadError
from ballast.model.hybrid.experts import expert_cache
from ballast.model.hybrid.experts.device_layers import place_experts
from ballast.model.hybrid.experts.divided_experts import MAX_COUNTED_TOKENS, DeviceExperts, DividedExperts
from ballast.model.hybrid.experts.expert_cache import BYTES_AT_ONCE, OBSERVED_STEPS, ExpertCache
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.faults import device_wait
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.load_stages.experts import _cache
from ballast.model.hybrid.streaming.host_memory import NOT_PINNED, PinnedMemory
from ballast.model.switched_off import SwitchedOff
from ballast.moe.expert_heat import ExpertHeat
from ballast.moe.expert_moves import Move
from devkit.kernels.plain_routing import divide
from devkit.models.changed_spec import changed
from devkit.models.cpu_backend import copied
from devkit.models.cpu_hand_off import cpu_hand_off
from devkit.models.cpu_platform import CpuPlatform
from devkit.models.float_experts import FloatExperts
from devkit.models.specs.deepseek import R1_SPEC

CPU = torch.device("cpu")
HIDDEN, WIDTH, EXPERTS, CHOSEN = 64, 32, 6, 2
SPEC = changed(R1_SPEC, hidden=HIDDEN, num_experts=EXPERTS, num_experts_used=CHOSEN)
RESIDENT = ((0, 1), (), tuple(range(EXPERTS)), (2, 3, 5))


class Stream:
    """A stream whose work is done when a test says so."""

    def __init__(self) -> None:
        self.is_done = True

    def record_event(self) -> Any:
        return Event(self)

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        assert self.is_done, "this would wait forever"


class Event:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def query(self) -> bool:
        return self._stream.is_done


class QueuedPlatform(CpuPlatform):
    """The first stream computes, the second one copies experts."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.compute, self.copies = Stream(), Stream()

    def current_stream(self) -> Any:
        return self.compute

    def new_stream(self, priority: int = 0) -> Any:
        return self.copies

    def on(self, stream: object) -> AbstractContextManager[object]:
        return nullcontext()


class Setting:
    """Four layers, of which the device has some experts, none, all and some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.platform = QueuedPlatform()
        monkeypatch.setattr(expert_cache, "platform_of", lambda _: self.platform)
        rng, self.pool = np.random.default_rng(0), kernels.ThreadPool(1)

        def matrix(rows: int, cols: int) -> kernels.Matrix:
            data = rng.standard_normal((EXPERTS * rows, cols), dtype=np.float32)
            return kernels.Matrix(data, T.F32, EXPERTS * rows, cols)

        def experts() -> kernels.Experts:
            return kernels.Experts(matrix(WIDTH, HIDDEN), matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH), EXPERTS)

        isa = kernels.usable_isas()[0]
        self.alone = [experts().packed(self.pool, isa, activation_bytes=2) for _ in RESIDENT]
        placed = [
            place_experts(layer, ids, FloatExperts, CPU, is_readable=False)
            for layer, ids in zip(self.alone, RESIDENT, strict=True)
        ]
        self.cache = ExpertCache(placed, ExpertHeat(np.zeros((len(RESIDENT), EXPERTS)), CHOSEN), copied, CPU)
        on_host = [layer for layer, own in zip(self.alone, placed, strict=True) if not own.is_whole]
        host = HostExperts(SPEC, on_host, self.pool, MAX_COUNTED_TOKENS + 8, cpu_hand_off())
        self.experts = DividedExperts(host, [DeviceExperts(self.cache.layers, divide, CPU, self.cache)])

    def step(self, chosen: list[list[int]], *, may_take: bool = True) -> None:
        """Run a step whose tokens select the same experts in each layer, and compare it with the CPU's."""
        self.experts.begin_step(may_take=may_take)
        self.experts.begin(len(chosen))
        self.experts.use_step()
        self.compute(chosen)
        self.experts.finish(lambda: None)

    def compute(self, chosen: list[list[int]]) -> None:
        rng, ids = torch.Generator().manual_seed(len(chosen)), torch.tensor(chosen, dtype=torch.int32)
        for layer, alone in enumerate(self.alone):
            x = torch.randn(len(chosen), HIDDEN, generator=rng)
            weights = torch.rand(len(chosen), CHOSEN, generator=rng)
            self.experts.submit(layer, x, ids, weights)
            found, wanted = self.experts.result(layer), torch.empty_like(x)
            alone.forward(self.pool, x.numpy(), ids.numpy(), weights.numpy(), wanted.numpy())
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))

    def table(self) -> list[list[int]]:
        """The slots that a step now reads, by layer."""
        return [[] if layer.slots is None else layer.slots.tolist() for layer in self.cache.layers]


EVERYONE = [[0, 1], [2, 3], [4, 5]]


def test_experts_that_are_used_replace_others_and_results_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch)
    for _ in range(5 * OBSERVED_STEPS):
        setting.step([[3, 4]] * 7)
    table = setting.table()
    assert [expert for expert, slot in enumerate(table[0]) if slot >= 0] == [3, 4]
    assert table[1] == []
    assert table[2] == list(range(EXPERTS))
    assert [expert for expert, slot in enumerate(table[3]) if slot >= 0] in ([2, 3, 4], [3, 4, 5])
    assert setting.cache.num_moved == 3
    assert setting.cache.bytes_moved == 3 * 3 * WIDTH * HIDDEN * 4
    assert 0 < setting.cache.num_hits < setting.cache.num_selections
    setting.step(EVERYONE)


def test_a_slot_is_overwritten_only_while_no_step_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch)
    move = Move(0, 1, 1, 4)
    monkeypatch.setattr(expert_cache, "choose_moves", lambda *_: [move])
    for _ in range(OBSERVED_STEPS + 1):
        setting.step(EVERYONE)
    monkeypatch.setattr(expert_cache, "choose_moves", lambda *_: [])
    setting.step(EVERYONE, may_take=False)
    assert setting.table()[0] == [0, 1, -1, -1, -1, -1], "a step on another stream may still read the slot"
    setting.platform.copies.is_done = False
    for _ in range(3):
        setting.step(EVERYONE)
        assert setting.table()[0] == [0, -1, -1, -1, -1, -1], "the copy is not complete"
    setting.platform.copies.is_done = True
    setting.platform.compute.is_done = False
    setting.step(EVERYONE)
    assert setting.table()[0] == [0, -1, -1, -1, -1, -1], "the last change of the table is not complete"
    setting.platform.compute.is_done = True
    setting.step(EVERYONE, may_take=False)
    assert setting.table()[0] == [0, -1, -1, -1, 1, -1]
    assert setting.cache.num_moved == 1


def test_copies_wait_for_the_change_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch)
    order: list[str] = []
    layer = setting.cache.layers[0]
    assert layer.resident is not None
    monkeypatch.setattr(setting.cache, "_copy", lambda host, out: (order.append("table"), out.copy_(host)))
    monkeypatch.setattr(Stream, "wait_event", lambda *_: order.append("wait"))
    monkeypatch.setattr(type(layer.resident), "write", lambda *_: order.append("write"))
    monkeypatch.setattr(expert_cache, "choose_moves", lambda *_: [Move(0, 0, 0, 4), Move(3, 1, 3, 4)])
    for _ in range(OBSERVED_STEPS + 1):
        setting.cache.begin_step(may_take=True)
        setting.cache.use_step()
        setting.cache.end_step()
    assert order == []
    setting.experts.begin_step(may_take=True)
    assert order == ["table"]
    setting.experts.use_step()
    assert order == ["table", "wait", "write", "write"]


def test_the_copies_during_a_step_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch)
    size = setting.cache.layers[0].expert_bytes
    assert size < BYTES_AT_ONCE
    monkeypatch.setattr(expert_cache, "BYTES_AT_ONCE", size)
    moves = [Move(0, 0, 0, 4), Move(0, 1, 1, 5)]
    monkeypatch.setattr(expert_cache, "choose_moves", lambda *_: moves)
    for _ in range(OBSERVED_STEPS + 1):
        setting.step(EVERYONE)
    monkeypatch.setattr(expert_cache, "choose_moves", lambda *_: [])
    tables = []
    for _ in range(3):
        setting.step(EVERYONE)
        tables.append(setting.table()[0])
    assert tables == [[-1, 1, -1, -1, -1, -1], [-1, -1, -1, -1, 0, -1], [-1, -1, -1, -1, 0, 1]]


def test_a_copy_that_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch)
    setting.experts.wait_for_moves()
    setting.platform.copies.is_done = False
    monkeypatch.setattr(device_wait, "LIMIT_S", 0.01)
    with pytest.raises(EngineDeadError, match=r"for 0\.01 s"):
        setting.experts.wait_for_moves()


@pytest.mark.parametrize("pins", [False, True])
def test_experts_stay_if_their_memory_is_not_pinned_and_the_start_says_so(
    monkeypatch: pytest.MonkeyPatch, pins: bool
) -> None:
    layers, off = Setting(monkeypatch).cache.layers, SwitchedOff()
    state: Any = SimpleNamespace(
        options=SimpleNamespace(updates_gpu_experts=True, expert_uses=None),
        spec=SPEC,
        pinned=PinnedMemory(),
        off=off,
    )
    platform = SimpleNamespace(pins=pins)
    device: Any = SimpleNamespace(platform=platform, backend=SimpleNamespace(small_copy=copied, device=CPU))
    assert (_cache(state, device, layers) is None) == pins
    assert off.reasons == ({"gpu_experts_update": NOT_PINNED} if pins else {})
    assert _cache(state, device, [LayerOnDevice()]) is None


def test_padding_and_long_steps_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch)
    counts: Callable[[], list[int]] = lambda: setting.cache.uses.sum(1).tolist()  # noqa: E731
    with setting.experts.uncounted():
        setting.step([[0, 1]] * 4)
    assert counts() == [0, 0, 0, 0]
    setting.step([[0, 1]] * (MAX_COUNTED_TOKENS + 1))
    assert counts() == [0, 0, 0, 0]
    setting.step([[0, 1]] * 4)
    assert counts() == [8, 0, 8, 8], "without slots, a layer cannot change"


def test_counters_may_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch)
    setting.cache.uses.fill_(2**31 - 3)
    setting.cache._before[:] = 2**31 - 3
    for _ in range(OBSERVED_STEPS + 1):
        setting.step([[0, 1]])
    assert setting.cache.heat.values[0].tolist() == [OBSERVED_STEPS, OBSERVED_STEPS, 0, 0, 0, 0]
