"""The choice and the division of experts in torch's operations, on any device.

No value comes back to the host, and shapes follow from the shape of the logits, so a CUDA graph may hold them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ballast.model.hybrid.experts.division import Division
from ballast.model.layers.feed_forward import RoutingSpec


class Router:
    """`Choose` for one layer. Equal logits give the CPU model's choice, unless scores lie closer together than the
    rounding of two exponentials."""

    def __init__(self, rule: RoutingSpec, bias: torch.Tensor | None, table: torch.Tensor | None = None) -> None:
        """bias float32 [E], on the device, added for the choice only. table int32 [vocabulary, k]: see `Choose`."""
        self._rule = rule
        self._bias = bias
        self._table = table

    def __call__(
        self, logits: torch.Tensor, token_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Choose`."""
        rule = self._rule
        scores = scores_of(logits, rule)
        biased = scores if self._bias is None else scores + self._bias
        if rule.num_groups_used < rule.num_groups:
            biased = biased.masked_fill(~self._allowed(biased), -torch.inf)
        if self._table is None:
            ids = _descending(biased)[:, : rule.num_experts_used]
        else:
            assert token_ids is not None
            ids = self._table[token_ids].long()
        weights = scores.gather(1, ids)
        if rule.normalize_weights:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # the addend: where all scores vanish
        return ids.to(torch.int32), weights * rule.weights_scale

    def _allowed(self, biased: torch.Tensor) -> torch.Tensor:
        """bool [T, E]: the experts of the groups used."""
        rule = self._rule
        by_group = biased.view(len(biased), rule.num_groups, rule.num_experts // rule.num_groups)
        best = by_group.topk(2 if rule.group_score == "top2_sum" else 1, sorted=False).values.sum(-1)
        used = _descending(best)[:, : rule.num_groups_used]
        allowed = torch.zeros_like(best, dtype=torch.bool).scatter(1, used, True)
        return allowed.repeat_interleave(by_group.shape[2], dim=1, output_size=biased.shape[1])


def scores_of(logits: torch.Tensor, rule: RoutingSpec) -> torch.Tensor:
    """The scores of experts, by their logits [T, E]."""
    if rule.gating == "sqrtsoftplus":
        return F.softplus(logits).sqrt()
    return logits.sigmoid() if rule.gating == "sigmoid" else logits.softmax(-1)


def _descending(values: torch.Tensor) -> torch.Tensor:
    """Indices of each row from the largest value to the smallest; of equal ones the lower first."""
    return values.sort(dim=-1, descending=True, stable=True).indices


def divide(
    ids: torch.Tensor,
    slots: torch.Tensor | None,
    share: torch.Tensor | None,
    phase: float,
    num_across: torch.Tensor,
    uses: torch.Tensor | None = None,
) -> Division:
    """`Divide` on any device."""
    if uses is not None:
        uses += torch.bincount(ids.flatten(), minlength=len(uses)).to(uses.dtype)
    nobody = torch.full_like(ids, -1)
    gpu_slots = nobody if slots is None else slots[ids]
    left = ids if slots is None else torch.where(gpu_slots < 0, ids, nobody)
    if share is None:
        return Division(gpu_slots, nobody, left)
    expert, order = left.flatten(), torch.arange(left.numel(), device=ids.device)
    again = (expert[:, None] == expert) & (order < order[:, None])
    is_first = ~again.any(1) & (expert >= 0)
    rank = ((expert < expert[:, None]) & is_first).sum(1)
    count = (share * is_first.sum() + phase).floor().long()
    goes = ((expert >= 0) & (rank < count)).view_as(ids)
    num_across += count
    return Division(gpu_slots, torch.where(goes, left, nobody), torch.where(goes, nobody, left))
