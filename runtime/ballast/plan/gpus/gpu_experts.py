"""Plans the routed experts in the GPUs' free memory, and the fraction of the others that they read across PCIe.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast.model.spec import ModelSpec
from ballast.model.tensors import expert_module, routed_bytes
from ballast.moe.device_rules import Placement
from ballast.moe.gpu_experts import GpuExperts, choose_gpu_experts

UNSPENT_BYTES = 1 << 30
"""GPU memory that stays free if the number of experts is "auto"."""
_UNSPENT_WITH_ALL = 256 << 20
"""The same if less than UNSPENT_BYTES would stay free with all experts: the last ones are worth most."""

_PCIE_BYTES_PER_S = 20e9
"""Rate at which a kernel reads across PCIe 4.0 with 16 lanes."""
_THREAD_BYTES_PER_S = 7.5e9
"""Approximate rate at which each of many threads reads host memory meanwhile; see benchmarks/results."""
_MAX_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class GpuExpertOptions:
    """Options for using a GPU's free memory and PCIe for routed experts."""

    most: int | None = 0
    """Most experts in the GPU's memory, over all layers; None: as many as fit."""
    uses: NDArray[np.int64] | None = None
    """[routed layers, E]: how often each was selected; None: all count the same."""
    pcie_share: float | None = 0.0
    """Fraction of a decode step's experts in host memory that the GPU reads; None: as measured at start."""
    updates: bool = False
    """Whether experts that are used more replace others in the GPU's memory."""
    pcie: float | None = None
    """Bytes per second of copies across PCIe, if described; None: a typical rate."""


@dataclass(frozen=True, slots=True)
class GpuExpertPlan:
    """Experts in the GPU's memory, by routed layer."""

    experts: GpuExperts
    num_bytes: int
    fixed_bytes: int
    """Bytes of `num_bytes` that a larger cache cannot displace."""
    detail: str

    @property
    def num_experts(self) -> int:
        return sum(map(len, self.experts))


def plan_gpu_experts(
    spec: ModelSpec,
    weights: Mapping[str, int],
    placement: Placement,
    expert_options: GpuExpertOptions,
    free_bytes: int,
    own: Collection[int],
) -> GpuExpertPlan:
    """Select the experts of one GPU: those of the routed layers with indices `own`. `weights`: packed bytes by name.
    Rules that name a layer's experts put all of them on the GPU
    or none. A requested number of experts is planned even if it exceeds `free_bytes`."""
    num_layers, num_experts = len(spec.routed_layers), spec.routing.num_experts
    layer_bytes = list(routed_bytes(spec, weights).values())
    expert_bytes = [size // num_experts for size in layer_bytes]
    by_layer = [placement.devices.get(expert_module(layer)) for layer in spec.routed_layers]
    always = frozenset(layer for layer in own if by_layer[layer] == "cuda")
    never = frozenset(layer for layer in range(num_layers) if layer not in own or by_layer[layer] == "cpu")
    is_auto = expert_options.most is None
    all_bytes = sum(layer_bytes[layer] for layer in own)
    unspent = _UNSPENT_WITH_ALL if all_bytes + _UNSPENT_WITH_ALL <= free_bytes else UNSPENT_BYTES
    uses = np.zeros((num_layers, num_experts), np.int64) if expert_options.uses is None else expert_options.uses
    experts = choose_gpu_experts(
        uses,
        expert_bytes,
        capacity_bytes=free_bytes - unspent if is_auto else sum(layer_bytes),
        most=expert_options.most,
        always=always,
        never=never,
        spreads=expert_options.updates,
    )
    num_bytes = sum(len(ids) * size for ids, size in zip(experts, expert_bytes, strict=True))
    fixed_bytes = sum(layer_bytes[layer] for layer in always) if is_auto else num_bytes
    how = "layer after layer" if expert_options.uses is None else "those used most, by the profile"
    if expert_options.updates:
        how = "which follow use"
    detail = f"{sum(map(len, experts))} of {len(own) * num_experts} routed experts, {how}"
    return GpuExpertPlan(experts, num_bytes, fixed_bytes, detail)


def estimated_share(num_threads: int) -> float:
    """The fraction of a decode step's experts for which GPU and CPU take the same time, by typical rates rather than
    measurements of this machine."""
    return min(_MAX_SHARE, _PCIE_BYTES_PER_S / (_PCIE_BYTES_PER_S + num_threads * _THREAD_BYTES_PER_S))


def share_is_estimated_by(num_threads: int) -> str:
    """The rates that `estimated_share` assumes, for people."""
    host = num_threads * _THREAD_BYTES_PER_S / 1e9
    return f"{_PCIE_BYTES_PER_S / 1e9:.0f} GB/s across PCIe and {host:.0f} GB/s for {num_threads} threads"
