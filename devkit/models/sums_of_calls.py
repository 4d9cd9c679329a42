"""The sums of a layer's experts by experts of any kind, which are made and called chunk by chunk."""

from __future__ import annotations

import torch

from ballast.model.hybrid.panels.stack import PanelStack
from ballast.model.hybrid.panels.unit import PLAIN, ExpertUnit
from ballast.model.hybrid.streaming.streamed_experts import MakeExperts, MakeSums


class SumsOfCalls:
    """Implements `LayerSums`."""

    def __init__(self, make_experts: MakeExperts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """See `MakeSums`."""
        self.total = torch.zeros_like(x)
        self._make_experts = make_experts
        self._given = x, ids, weights

    def add(self, first: int, gate: PanelStack, up: PanelStack, down: PanelStack, *, unit: ExpertUnit = PLAIN) -> None:
        """See `LayerSums`."""
        x, ids, weights = self._given
        self.total += self._make_experts(gate, up, down, unit=unit)(x, ids - first, weights)


def sums_of_calls(make_experts: MakeExperts) -> MakeSums:
    """`MakeSums` for experts of any kind."""
    return lambda x, ids, weights, num_experts: SumsOfCalls(make_experts, x, ids, weights)
