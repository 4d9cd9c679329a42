"""Divides the selected experts of a step: the device computes some from its own memory, some from host memory over
PCIe, and the CPU computes the rest.

No value is read back to the host, so a CUDA graph can contain the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

MAX_SHARED_TOKENS = 32
"""Maximum tokens of a step whose experts may be read over PCIe; the rule compares all pairs of token and expert with
each other."""


@dataclass(frozen=True, slots=True)
class Division:
    """Each int32 [T, k]; for every selected expert, exactly one of the three is not -1."""

    gpu_slots: torch.Tensor
    """Slots of experts in device memory."""
    across: torch.Tensor
    """Ids of experts that the device reads from host memory."""
    on_host: torch.Tensor
    """Ids of experts that the CPU computes."""


class Divide(Protocol):
    """Divides a step's selected experts, ids int32 [T, k].

    `slots` int32 [E]: an expert's slot in device memory, -1 if it is not there; None: no expert is there. `share`
    float32 []: of the N distinct remaining experts, in ascending order of ids, the device reads the first floor(share *
    N + phase) over PCIe; None: none. `phase`, 0…1, differs from layer to layer: layers that select few experts then
    meet the fraction on average. `num_across` int64 []: their number is added to it. `uses` int32 [E]: the number of
    tokens that selected each expert is added to it; None: they are not counted."""

    def __call__(
        self,
        ids: torch.Tensor,
        slots: torch.Tensor | None,
        share: torch.Tensor | None,
        phase: float,
        num_across: torch.Tensor,
        uses: torch.Tensor | None = None,
    ) -> Division: ...


def phase_of(layer: int) -> float:
    """A layer's phase: multiples of the golden ratio, modulo 1, which are spread evenly for any number of layers (H.
    Weyl, 1916)."""
    return (layer + 1) * 0.6180339887498949 % 1
