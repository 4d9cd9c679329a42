"""Counters of the CPU/GPU hybrid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ballast.metric import Counter, Gauge
from ballast.model.switched_off import Feature


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """The counters and settings of one device. The names are part of `/debug/state`."""

    name: str
    """"cuda:N"."""
    layers: tuple[int, int] | None = None
    """The first and the last layer that it computes."""
    expert_bytes_over_pcie: Annotated[
        int,
        Counter("expert_weight_bytes_over_pcie", "Bytes of expert weights that a GPU has read from host memory."),
    ] = 0
    gpu_experts: Annotated[int, Gauge("resident_experts", "Routed experts in a GPU's memory.")] = 0
    expert_selections: Annotated[
        int, Counter("expert_selections", "Experts that tokens selected, where a GPU's experts follow use.")
    ] = 0
    expert_hits: Annotated[int, Counter("expert_hits", "Selected experts that were in the GPU's memory.")] = 0
    moved_experts: Annotated[int, Counter("moved_experts", "Experts that replaced others in the GPU's memory.")] = 0
    moved_expert_bytes: Annotated[int, Counter("moved_expert_bytes", "Bytes of these experts.")] = 0
    pcie_share: Annotated[
        float,
        Gauge("pcie_share_ratio", "Fraction of decode steps' host experts that a GPU reads."),
    ] = 0.0


NO_DEVICE = DeviceNumbers("cpu")
"""Stands for the devices of a model without any, so that all servers have the same metrics."""


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Totals since the model was loaded, and current values. The names are part of `/debug/state`."""

    streamed_steps: Annotated[int, Counter("streamed_steps", "Steps that streamed experts through a GPU.")] = 0
    decode_graphs: Annotated[int, Gauge("decode_graphs", "Batch sizes with a captured decode graph.")] = 0
    devices: tuple[DeviceNumbers, ...] = ()
    """In the order of their layers."""
    saturated_numbers: Annotated[
        int,
        Counter(
            "saturated_numbers",
            "Numbers too large for a GPU's cache or attention, which were clamped.",
        ),
    ] = 0
    switched_off: Mapping[Feature, str] = field(default_factory=dict)
    """GPU features that are switched off, with the reason."""

    @property
    def gpu_experts(self) -> int:
        """Routed experts in GPU memory, over all devices."""
        return sum(each.gpu_experts for each in self.devices)

    @property
    def pcie_share(self) -> float:
        """The largest fraction that a device reads across PCIe."""
        return max((each.pcie_share for each in self.devices), default=0.0)
