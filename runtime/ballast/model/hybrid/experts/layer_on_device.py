"""The experts of one layer that a device computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ballast.model.hybrid.experts.resident_experts import ResidentExperts
from ballast.model.hybrid.streaming.streamed_experts import GroupedExperts


@dataclass(frozen=True, slots=True)
class LayerOnDevice:
    """The experts of a layer that the device computes. Each is computed in parts, whose results are summed."""

    gpu_experts: Sequence[GroupedExperts] = ()
    """The parts of the experts in device memory, which are selected by slot."""
    slots: torch.Tensor | None = None  # int32 [E], -1 for an expert that is not in device memory
    num_gpu_experts: int = 0
    resident: ResidentExperts | None = None
    """Replaces experts in device memory; None if there are none, or if the host has no copy of them."""
    across: Sequence[GroupedExperts] = ()
    """The parts of all experts in host memory, which are selected by id; empty if the device cannot read them."""
    expert_bytes: int = 0
    is_whole: bool = False
    """Whether every expert is in device memory, in the slot of its id, and stays there: then no activations are sent to
    the CPU."""
