"""Which routed experts lie in a GPU's spare memory as well, and what the GPU reads of the others across PCIe. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast.model.spec import ModelSpec
from ballast.model.tensors import group_of
from ballast.moe.placement import Assignment
from ballast.moe.residents import Residents, choose_residents

UNSPENT_BYTES = 1 << 30
"""Of a GPU's memory, that experts leave free where they may take all that is spare."""

_PCIE_BYTES_PER_S = 20e9
"""What a kernel reads across PCIe 4.0 with 16 lanes."""
_THREAD_BYTES_PER_S = 7.5e9
"""What one of many threads reads of host memory beside that, roughly; the records in benchmarks/results."""
_MOST_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for of a GPU's spare memory, and of PCIe."""

    most: int | None = 0
    """Experts, over all layers; None: as many as there is room for."""
    uses: NDArray[np.int64] | None = None
    """[routed layers, E]: how often each was chosen; None: they count alike."""
    pcie_share: float | None = 0.0
    """Of a decode step's experts in host memory; None: as start measures it."""


@dataclass(frozen=True, slots=True)
class ResidentPlan:
    """Experts in the GPU's memory, by routed layer."""

    experts: Residents
    num_bytes: int
    fixed_bytes: int
    """Of `num_bytes`, what does not give way to a larger cache."""
    detail: str

    @property
    def num_experts(self) -> int:
        return sum(map(len, self.experts))


def plan_residents(
    spec: ModelSpec, weights: Mapping[str, int], assignment: Assignment, wanted: Wanted, room_bytes: int
) -> ResidentPlan:
    """`weights`: bytes as packed, by name. Rules that name the experts of a layer are followed: all on the GPU, or
    none. Only experts that nobody asks for are bound to fit `room_bytes`."""
    num_layers = spec.num_layers - spec.num_dense_layers
    layer_bytes = [0] * num_layers
    for name, num_bytes in weights.items():
        if group_of(name) == "routed experts":
            layer_bytes[int(name.split(".")[1]) - spec.num_dense_layers] += num_bytes
    expert_bytes = [size // max(1, spec.num_experts) for size in layer_bytes]
    asked = _asked_devices(assignment)
    by_layer = [asked.get(f"model.layers.{spec.num_dense_layers + layer}.mlp.experts") for layer in range(num_layers)]
    always = frozenset(layer for layer, device in enumerate(by_layer) if device not in (None, "cpu"))
    never = frozenset(layer for layer, device in enumerate(by_layer) if device == "cpu")
    is_auto = wanted.most is None
    uses = np.zeros((num_layers, spec.num_experts), np.int64) if wanted.uses is None else wanted.uses
    experts = choose_residents(
        uses,
        expert_bytes,
        room_bytes=room_bytes - UNSPENT_BYTES if is_auto else sum(layer_bytes),
        most=wanted.most,
        always=always,
        never=never,
    )
    num_bytes = sum(len(ids) * size for ids, size in zip(experts, expert_bytes, strict=True))
    fixed_bytes = sum(layer_bytes[layer] for layer in always) if is_auto else num_bytes
    how = "layer after layer" if wanted.uses is None else "those used most, by the profile"
    detail = f"{sum(map(len, experts))} of {num_layers * spec.num_experts} routed experts, {how}"
    return ResidentPlan(experts, num_bytes, fixed_bytes, detail)


def estimated_share(num_threads: int) -> float:
    """Of a decode step's experts, what the GPU should read across PCIe, by figures that are common, not this machine's:
    both sides then take equally long."""
    return min(_MOST_SHARE, _PCIE_BYTES_PER_S / (_PCIE_BYTES_PER_S + num_threads * _THREAD_BYTES_PER_S))


def share_is_estimated_by(num_threads: int) -> str:
    """What `estimated_share` assumes."""
    host = num_threads * _THREAD_BYTES_PER_S / 1e9
    return f"{_PCIE_BYTES_PER_S / 1e9:.0f} GB/s across PCIe and {host:.0f} GB/s for {num_threads} threads"


def _asked_devices(assignment: Assignment) -> dict[str, str]:
    """What rules say, by module."""
    return {
        module: report.rule.device
        for report in assignment.rules
        if report.rule.device is not None
        for module in report.modules
    }
