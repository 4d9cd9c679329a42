"""Routed experts that are divided between a device and the CPU give the results of the CPU alone, for every division.
Here the device is also the CPU, with experts of floats."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast._core import kernels
from ballast.model.hybrid.experts.device_layers import place_experts
from ballast.model.hybrid.experts.divided_experts import DeviceExperts, DividedExperts
from ballast.model.hybrid.experts.division import MAX_SHARED_TOKENS, phase_of
from ballast.model.hybrid.experts.layer_on_device import LayerOnDevice
from ballast.model.hybrid.experts.self_check import checked
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import ExpertUnit
from ballast.model.hybrid.startup.pcie_share import best_share, layers_to_measure
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts
from ballast.model.switched_off import SwitchedOff
from devkit.kernels.plain_routing import divide
from devkit.models.changed_spec import changed
from devkit.models.cpu_hand_off import cpu_hand_off
from devkit.models.float_experts import FloatExperts
from devkit.models.specs.deepseek import R1_SPEC

CPU = torch.device("cpu")
HIDDEN, WIDTH, EXPERTS, CHOSEN, LAYERS = 64, 32, 8, 3, 3
SPEC = changed(R1_SPEC, hidden=HIDDEN, num_experts=EXPERTS, num_experts_used=CHOSEN)
EXPERT_BYTES = 3 * WIDTH * HIDDEN * 4
NOBODY, EVERYBODY = ((),) * LAYERS, (tuple(range(EXPERTS)),) * LAYERS


class Setting:
    def __init__(self, gpu_experts: tuple[tuple[int, ...], ...], share: float, scale: float = 1.0) -> None:
        rng = np.random.default_rng(0)
        pool = kernels.ThreadPool(2)

        def matrix(rows: int, cols: int) -> kernels.Matrix:
            data = np.float32(scale) * rng.standard_normal((EXPERTS * rows, cols), dtype=np.float32)
            return kernels.Matrix(data, T.F32, EXPERTS * rows, cols)

        stacked = [
            kernels.Experts(matrix(WIDTH, HIDDEN), matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH), EXPERTS)
            for _ in range(LAYERS)
        ]
        self.layers = [experts.packed(pool, kernels.usable_isas()[0], activation_bytes=2) for experts in stacked]
        on_device = [
            place_experts(experts, ids, FloatExperts, CPU, is_readable=True)
            for experts, ids in zip(self.layers, gpu_experts, strict=True)
        ]
        on_host = [experts for experts, placed in zip(self.layers, on_device, strict=True) if not placed.is_whole]
        host = HostExperts(SPEC, on_host, pool, 64, cpu_hand_off())
        self.pool = pool
        self.experts = DividedExperts(host, [DeviceExperts(on_device, divide, CPU)])
        self.experts.set_pcie_share(share)

    def run(self, num_tokens: int, seed: int) -> list[int]:
        """Run a step of all layers and compare it with the CPU's; returns the number of distinct experts by layer."""
        rng = torch.Generator().manual_seed(seed)
        self.experts.begin(num_tokens)
        distinct = []
        for layer, alone in enumerate(self.layers):
            x = torch.randn(num_tokens, HIDDEN, generator=rng)
            ids = torch.rand(num_tokens, EXPERTS, generator=rng).argsort(1)[:, :CHOSEN].int()
            weights = torch.rand(num_tokens, CHOSEN, generator=rng)
            self.experts.submit(layer, x, ids, weights)
            found = self.experts.result(layer)
            wanted = torch.empty_like(x)
            alone.forward(self.pool, x.numpy(), ids.numpy(), weights.numpy(), wanted.numpy())
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
            distinct.append(len(ids.unique()))
        self.experts.finish(lambda: None)
        return distinct


@pytest.mark.parametrize("gpu_experts", [NOBODY, ((1, 4), (), EVERYBODY[0]), EVERYBODY], ids=["none", "some", "all"])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_every_division_of_experts_gives_the_same_sum(gpu_experts: tuple[tuple[int, ...], ...], share: float) -> None:
    setting = Setting(gpu_experts, share)
    distinct = np.zeros(LAYERS, int)
    for num_tokens, seed in ((1, 1), (4, 2), (3, 3), (MAX_SHARED_TOKENS, 5), (1, 4)):
        distinct += setting.run(num_tokens, seed)
    on_host = setting.experts.host_bytes_read
    across = setting.experts.pcie_bytes_read
    assert on_host % EXPERT_BYTES == across % EXPERT_BYTES == 0
    if gpu_experts is NOBODY:
        assert on_host + across == distinct.sum() * EXPERT_BYTES, "one processor reads each distinct expert once"
    if gpu_experts is EVERYBODY:
        assert on_host == across == 0
    assert (across == 0) == (share == 0 or gpu_experts is EVERYBODY)
    assert (on_host == 0) == (share == 1 or gpu_experts is EVERYBODY)


def test_a_layer_that_is_entirely_on_the_device_needs_no_division(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(EVERYBODY, 0.0)
    [device] = setting.experts._devices
    monkeypatch.setattr(device, "divide", None)
    setting.run(3, 0)


def test_only_the_cpu_computes_long_steps() -> None:
    setting = Setting(NOBODY, 0.5)
    setting.run(MAX_SHARED_TOKENS + 1, 0)
    assert setting.experts.pcie_bytes_read == 0


def test_a_share_must_gain_something_to_be_used() -> None:
    assert best_share({0.0: 1.0, 0.125: 0.95, 0.25: 0.9, 0.4: 1.1}) == 0.25
    assert best_share({0.0: 1.0, 0.125: 0.99, 0.25: 1.2}) == 0.0


def test_measured_layers_cover_every_part_of_a_model() -> None:
    assert layers_to_measure([1, 2]) == [1, 2]
    assert layers_to_measure(range(58)) == [0, 7, 14, 21, 29, 36, 43, 50]


def test_a_share_changes_between_steps() -> None:
    setting = Setting(NOBODY, 1.0)
    setting.run(2, 0)
    before = setting.experts.pcie_bytes_read
    setting.experts.set_pcie_share(0.0)
    setting.run(2, 1)
    assert setting.experts.pcie_bytes_read == before > 0


@settings(deadline=None)
@given(share=st.floats(0, 1, width=32), first=st.integers(0, 200))
def test_layers_of_eight_experts_meet_the_share_on_average(share: float, first: int) -> None:
    ids, counter = torch.arange(8, dtype=torch.int32)[None], torch.tensor(0)
    for layer in range(first, first + 21):
        before = int(counter)
        divide(ids, None, torch.tensor(share), phase_of(layer), counter)
        assert abs(int(counter) - before - 8 * share) <= 1
    assert abs(int(counter) / 21 - 8 * share) < 0.15


@pytest.mark.parametrize(
    ("ids", "is_readable", "features"),
    [((1, 4), True, {"gpu_experts", "pcie_share"}), ((1, 4), False, {"gpu_experts"}), ((), True, {"pcie_share"})],
)
def test_experts_with_wrong_results_or_errors_stay_on_the_cpu(
    ids: tuple[int, ...], is_readable: bool, features: set[str]
) -> None:
    setting = Setting(NOBODY, 0.5)

    def after(change: Callable[[torch.Tensor], torch.Tensor], off: SwitchedOff) -> list[LayerOnDevice]:
        def make(*stacks: PanelStack, unit: ExpertUnit) -> GroupedExperts:
            right = FloatExperts(*stacks, unit=unit)
            return lambda *arguments: change(right(*arguments))

        placed = [place_experts(layer, ids, make, CPU, is_readable=is_readable) for layer in setting.layers]
        return checked(placed, setting.layers, setting.pool, SPEC, [1, 5], CPU, nullcontext, off)

    def failing(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the compiler gave up\nand said more")

    off = SwitchedOff()
    right = after(lambda found: found * 1.001, off)
    assert all(layer.num_gpu_experts == len(ids) and bool(layer.across) == is_readable for layer in right)
    assert off.reasons == {}
    where = "GPU" if ids else "across"
    for change, reason in (
        (lambda found: found * 1.2, f"ValueError: {where} experts differ from the CPU's by 0.2 for 1 tokens"),
        (lambda found: found * torch.nan, f"ValueError: {where} experts differ from the CPU's by nan for 1 tokens"),
        (failing, "RuntimeError: the compiler gave up"),
    ):
        off = SwitchedOff()
        assert after(change, off) == [LayerOnDevice()] * LAYERS
        assert off.reasons == dict.fromkeys(features, reason)


def test_the_device_computes_experts_of_zeros() -> None:
    setting = Setting(NOBODY, 0.0, scale=0.0)
    placed = [place_experts(layer, (1, 4), FloatExperts, CPU, is_readable=True) for layer in setting.layers]
    off = SwitchedOff()
    assert checked(placed, setting.layers, setting.pool, SPEC, [1, 5], CPU, nullcontext, off) == placed
    assert off.reasons == {}


def test_a_lost_device_ends_the_check() -> None:
    setting = Setting(NOBODY, 0.0)

    def lost(*_: torch.Tensor) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: the device was lost on demand")

    placed = [place_experts(layer, (0,), lambda *_, unit: lost, CPU, is_readable=False) for layer in setting.layers]
    with pytest.raises(torch.AcceleratorError):
        checked(placed, setting.layers, setting.pool, SPEC, [1], CPU, nullcontext, SwitchedOff())
