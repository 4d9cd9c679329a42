"""Counters of a model that also computes on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast.model.switched_off import Feature


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Totals since the model was loaded, and current values."""

    expert_bytes_over_pcie: int = 0
    """Bytes of routed experts' weights that the GPU has read from host memory."""
    streamed_steps: int = 0
    """Steps whose routed experts were all computed by the GPU."""
    decode_graphs: int = 0
    """Number of batch sizes that are decoded by a captured graph."""
    gpu_experts: int = 0
    """Routed experts in the GPU's memory, over all layers."""
    pcie_share: float = 0.0
    """Share of a decode step's other experts that the GPU reads from host memory, 0…1."""
    saturated_numbers: int = 0
    """Numbers in keys, latents and queries that were too large for half precision, and were taken as its largest."""
    switched_off: Mapping[Feature, str] = field(default_factory=dict)
    """Ways of computing on the GPU that the model does without, and why."""
