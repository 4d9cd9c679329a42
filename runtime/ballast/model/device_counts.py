"""What a model that computes on a GPU as well counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Since the model was loaded, or as it stands."""

    expert_bytes_over_pcie: int = 0
    """Bytes of routed experts' weights that the GPU has read from host memory."""
    streamed_steps: int = 0
    """Steps whose routed experts all went to the GPU."""
    decode_graphs: int = 0
    """Batch sizes that are decoded by a captured graph."""
    resident_experts: int = 0
    """Routed experts in the GPU's memory, over all layers."""
    pcie_share: float = 0.0
    """Of a decode step's other experts, those that the GPU reads from host memory."""
