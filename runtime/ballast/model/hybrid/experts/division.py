"""Who computes the experts that a step has chosen: the device from its own memory, the device from host memory across
PCIe, or the CPU. The rule in torch's operations, without a value that comes back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

MOST_SHARED_TOKENS = 4
"""Of a step of which a share may go across PCIe. With more of them an expert's tokens are multiplied on tensor cores,
by kernels that read host memory slowly; and the rule compares every pair of token and expert with every other."""


@dataclass(frozen=True, slots=True)
class Division:
    """Each int32 [T, k]; of every chosen expert exactly one of the three is not -1."""

    resident: torch.Tensor
    """The expert's slot among those in the device's memory."""
    across: torch.Tensor
    """Experts that the device reads from host memory."""
    on_host: torch.Tensor
    """Experts that the CPU computes."""


class Divide(Protocol):
    """Divides a step's choice, ids int32 [T, k].

    `slots` int32 [E]: where the device has an expert in its memory, -1 where not; None: nowhere. Of the N distinct
    experts that are left, in ascending order of their ids, the first floor(share * N + phase) go across PCIe. `share`
    is float32 [], `phase` in 0…1 differs from layer to layer, so that layers of few experts come to the share together;
    `share` None: none go. `num_across` int64 [], which their number is added to."""

    def __call__(
        self,
        ids: torch.Tensor,
        slots: torch.Tensor | None,
        share: torch.Tensor | None,
        phase: float,
        num_across: torch.Tensor,
    ) -> Division: ...


def divide(
    ids: torch.Tensor,
    slots: torch.Tensor | None,
    share: torch.Tensor | None,
    phase: float,
    num_across: torch.Tensor,
) -> Division:
    """On any device; see `Divide`."""
    nobody = torch.full_like(ids, -1)
    resident = nobody if slots is None else slots[ids]
    left = ids if slots is None else torch.where(resident < 0, ids, nobody)
    if share is None:
        return Division(resident, nobody, left)
    expert, order = left.flatten(), torch.arange(left.numel(), device=ids.device)
    again = (expert[:, None] == expert) & (order < order[:, None])
    is_first = ~again.any(1) & (expert >= 0)
    rank = ((expert < expert[:, None]) & is_first).sum(1)
    count = (share * is_first.sum() + phase).floor().long()
    goes = ((expert >= 0) & (rank < count)).view_as(ids)
    num_across += count
    return Division(resident, torch.where(goes, left, nobody), torch.where(goes, nobody, left))


def phase_of(layer: int) -> float:
    """Spread evenly over 0…1, whatever the number of layers: multiples of the golden ratio (H. Weyl, 1916)."""
    return (layer + 1) * 0.6180339887498949 % 1
