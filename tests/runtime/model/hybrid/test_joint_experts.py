"""Experts that the CPU and the device compute together give the results of the CPU alone. Here the device is also the
CPU, with experts of floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from ballast._core import kernels
from ballast._core.numa import ANY_CPU, NodeThreads, Placement
from ballast.model.hybrid.experts.device_layers import place_experts
from ballast.model.hybrid.experts.divided_experts import DeviceExperts, DividedExperts
from ballast.model.hybrid.experts.joint_experts import JointExperts
from ballast.model.hybrid.handoff.host_experts import HostExperts
from ballast.model.hybrid.streaming import chunks
from ballast.model.hybrid.streaming.host_memory import panels_of
from ballast.model.hybrid.streaming.joint_split import JointSplit
from devkit.kernels.plain_routing import divide
from devkit.models.changed_spec import changed
from devkit.models.cpu_hand_off import cpu_hand_off
from devkit.models.float_experts import FloatExperts
from devkit.models.specs.deepseek import R1_SPEC
from devkit.models.streamed_on import streamed_on
from devkit.models.sums_of_calls import sums_of_calls

CPU = torch.device("cpu")
HIDDEN, WIDTH, EXPERTS, CHOSEN, LAYERS = 64, 96, 8, 3, 3
SPEC = changed(R1_SPEC, hidden=HIDDEN, num_experts=EXPERTS, num_experts_used=CHOSEN)
EXPERT_BYTES = 3 * WIDTH * HIDDEN * 4
NOBODY = ((),) * LAYERS
EVERYBODY = tuple(range(EXPERTS))


class Setting:
    """Layers in chunks of two experts, on one node or two."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        fraction: float,
        gpu_experts: tuple[tuple[int, ...], ...] = NOBODY,
        share: float = 0.0,
        num_nodes: int = 1,
    ) -> None:
        rng = np.random.default_rng(0)
        self.pool = kernels.ThreadPool(Placement([NodeThreads(300 + node, [ANY_CPU]) for node in range(num_nodes)]))

        def matrix(rows: int, cols: int) -> kernels.Matrix:
            data = rng.standard_normal((EXPERTS * rows, cols), dtype=np.float32)
            return kernels.Matrix(data, T.F32, EXPERTS * rows, cols)

        self.layers = [
            kernels.Experts(matrix(WIDTH, HIDDEN), matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH), EXPERTS).packed(
                self.pool, kernels.usable_isas()[0], activation_bytes=2
            )
            for _ in range(LAYERS)
        ]
        placed = [
            place_experts(experts, ids, FloatExperts, CPU, is_readable=True)
            for experts, ids in zip(self.layers, gpu_experts, strict=True)
        ]
        on_host = [layer for layer, own in zip(self.layers, placed, strict=True) if not own.is_whole]
        monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 2 * panels_of(self.layers[0])[0].expert_bytes)
        monkeypatch.setattr(chunks, "CHUNKS_PER_LAYER", 1)
        monkeypatch.setattr(chunks, "NUM_BUFFERS", 3)
        self.host = HostExperts(SPEC, on_host, self.pool, 64, cpu_hand_off())
        self.streamed = streamed_on([panels_of(layer) for layer in on_host], sums_of_calls(FloatExperts), CPU)
        self.joint = JointExperts(self.host, self.streamed, JointSplit([(1, fraction)], 1, 64))
        divided = DividedExperts(self.host, [DeviceExperts(placed, divide, CPU)])
        divided.set_pcie_share(share)
        self.experts = divided.over(self.joint)

    def run(self, num_tokens: int, seed: int = 0) -> int:
        """Run a step of all layers and compare it with the CPU's; returns the number of distinct experts that its
        layers have selected."""
        rng = torch.Generator().manual_seed(seed)
        self.experts.begin(num_tokens)
        num_distinct = 0
        for layer, alone in enumerate(self.layers):
            x = torch.randn(num_tokens, HIDDEN, generator=rng)
            ids = torch.rand(num_tokens, EXPERTS, generator=rng).argsort(1)[:, :CHOSEN].int()
            weights = torch.rand(num_tokens, CHOSEN, generator=rng)
            self.experts.submit(layer, x, ids, weights)
            found = self.experts.result(layer)
            wanted = torch.empty_like(x)
            alone.forward(self.pool, x.numpy(), ids.numpy(), weights.numpy(), wanted.numpy())
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
            num_distinct += len(ids.unique())
        self.experts.finish(lambda: None)
        assert self.experts.is_done(0.0)
        return num_distinct


@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_a_joint_step_gives_the_results_of_the_cpu_alone(
    monkeypatch: pytest.MonkeyPatch, fraction: float, num_nodes: int
) -> None:
    setting = Setting(monkeypatch, fraction=fraction, num_nodes=num_nodes)
    for num_tokens, seed in ((40, 1), (1, 2), (64, 3)):
        setting.run(num_tokens, seed)
    assert (setting.streamed.bytes_read > 0) == (fraction > 0)
    assert (setting.host.bytes_read > 0) == (fraction < 1)


def test_exactly_one_processor_reads_each_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch, fraction=0.5)
    assert setting.run(64) == LAYERS * EXPERTS, "64 tokens select every expert"
    assert setting.streamed.bytes_read == setting.host.bytes_read == LAYERS * EXPERTS // 2 * EXPERT_BYTES
    assert setting.joint.bytes_read == LAYERS * EXPERTS * EXPERT_BYTES


@pytest.mark.parametrize("gpu_experts", [((1, 4), (), (0, 7)), ((), EVERYBODY, (2,))], ids=["some", "one layer"])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_joint_steps_work_with_experts_in_device_memory_and_over_pcie(
    monkeypatch: pytest.MonkeyPatch, gpu_experts: tuple[tuple[int, ...], ...], share: float
) -> None:
    setting = Setting(monkeypatch, fraction=0.5, gpu_experts=gpu_experts, share=share)
    for num_tokens, seed in ((40, 1), (16, 2)):
        setting.run(num_tokens, seed)
    assert setting.streamed.bytes_read > 0
    assert setting.host.bytes_read > 0
    assert (setting.experts.pcie_bytes_read > 0) == (share > 0)


@pytest.mark.parametrize("num_resident", [2, 4, 6])
def test_the_streamed_fraction_is_of_the_experts_in_host_memory(
    monkeypatch: pytest.MonkeyPatch, num_resident: int
) -> None:
    """Also after these have been replaced."""
    ids = tuple(range(num_resident))
    setting = Setting(monkeypatch, fraction=0.5, gpu_experts=(ids, ids, ids))
    resident = np.arange(EXPERTS) < num_resident
    setting.streamed.skip([lambda: resident] * LAYERS)
    setting.run(64)
    in_host = LAYERS * (EXPERTS - num_resident) * EXPERT_BYTES
    assert setting.streamed.bytes_read + setting.host.bytes_read == in_host
    assert abs(setting.streamed.bytes_read - in_host / 2) <= EXPERT_BYTES, "half of a chunk"
    assert setting.streamed.num_copied(0)[-1] == EXPERTS - num_resident
    resident[[0, EXPERTS - 1]] = False, True
    assert setting.streamed.num_copied(0)[0] == 1, "expert 0, which has left"


def test_joint_steps_and_other_steps_may_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch, fraction=0.5)
    joint = setting.experts
    for seed, kind in enumerate((setting.joint, setting.streamed, setting.host, setting.joint, setting.streamed)):
        setting.experts = joint.over(kind)
        setting.run(20, seed)
    assert setting.streamed.bytes_read == (2 * 0.5 + 2) * LAYERS * EXPERTS * EXPERT_BYTES
