"""Divides the experts that a step has chosen: the device computes some from its own memory, some from host memory over
PCIe, and the CPU computes the rest.

No value comes back to the host, so a CUDA graph may hold the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

MOST_SHARED_TOKENS = 32
"""Most tokens of a step whose experts may be read over PCIe; the rule compares every pair of token and expert with
every other."""


@dataclass(frozen=True, slots=True)
class Division:
    """Each int32 [T, k]; for every chosen expert, exactly one of the three is not -1."""

    gpu_slots: torch.Tensor
    """Slots of experts in the device's memory."""
    across: torch.Tensor
    """Ids of experts that the device reads from host memory."""
    on_host: torch.Tensor
    """Ids of experts that the CPU computes."""


class Divide(Protocol):
    """Divides a step's choice, ids int32 [T, k].

    `slots` int32 [E]: an expert's slot in the device's memory, -1 for one that is not there; None: no expert is there.
    `share` float32 []: of the N distinct experts that are left, in ascending order of ids, the device reads the first
    floor(share * N + phase) over PCIe; None: none. `phase`, 0…1, differs from layer to layer: layers that choose few
    experts then meet the share on average. `num_across` int64 []: their number is added to it."""

    def __call__(
        self,
        ids: torch.Tensor,
        slots: torch.Tensor | None,
        share: torch.Tensor | None,
        phase: float,
        num_across: torch.Tensor,
    ) -> Division: ...


def phase_of(layer: int) -> float:
    """A layer's phase: multiples of the golden ratio, modulo 1, spread evenly for any number of layers (H. Weyl,
    1916)."""
    return (layer + 1) * 0.6180339887498949 % 1
