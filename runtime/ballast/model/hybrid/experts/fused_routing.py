"""`Choose`, `Divide` and the grouping of `group_by_expert` on a GPU, one kernel launch each."""

from __future__ import annotations

import torch

from ballast.model.hybrid.experts import routing_kernels
from ballast.model.hybrid.experts.division import Division
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.layers.feed_forward import RoutingSpec

FEW_PAIRS = 128
"""Maximum number of pairs for comparing all pairs with each other."""
_PAIRS = 256
"""Pairs of token and expert per program, if pairs are not compared."""
_ORDERED = 1024
"""Pairs that a program reads at a time when it orders them."""
_TILES = 32
"""Tiles per program."""


_GATINGS = ("softmax", "sigmoid", "sqrtsoftplus")
"""In the order in which kernels number them."""


class FusedRouter:
    """`Choose` in one launch."""

    def __init__(self, rule: RoutingSpec, bias: torch.Tensor | None, table: torch.Tensor | None = None) -> None:
        """bias float32 [E], on the device, added only for the selection; table as in `MakeRouter`."""
        group_size = rule.num_experts // rule.num_groups
        self._bias, self._table = bias, table
        self._scale = rule.weights_scale
        self._known = {
            "HAS_BIAS": bias is not None,
            "HAS_TABLE": table is not None,
            "GATING": _GATINGS.index(rule.gating),
            "IS_TOP2": rule.group_score == "top2_sum",
            "NORMALIZES": rule.normalize_weights,
            "GROUPS": rule.num_groups,
            "GROUPS_USED": rule.num_groups_used,
            "GROUP_SIZE": group_size,
            "CHOSEN": rule.num_experts_used,
            "PADDED_GROUPS": padded(rule.num_groups),
            "PADDED_GROUP_SIZE": padded(group_size),
            "PADDED_CHOSEN": padded(rule.num_experts_used),
        }

    def __call__(
        self, logits: torch.Tensor, token_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Choose`."""
        num_tokens, logits = logits.shape[0], logits.contiguous()
        ids = torch.empty((num_tokens, self._known["CHOSEN"]), dtype=torch.int32, device=logits.device)
        weights = logits.new_empty(ids.shape)
        if num_tokens:
            # Any pointers, if there is no bias or no table.
            bias = logits if self._bias is None else self._bias
            table = (ids, ids) if self._table is None else (self._table, token_ids)
            routing_kernels.route[(num_tokens,)](
                *(logits, bias, *table, ids, weights, self._scale),
                **self._known,
                num_warps=1,
                **early(logits.device),
            )
        return ids, weights


def fused_divide(
    ids: torch.Tensor,
    slots: torch.Tensor | None,
    share: torch.Tensor | None,
    phase: float,
    num_across: torch.Tensor,
    uses: torch.Tensor | None = None,
) -> Division:
    """`Divide` in one launch; ids are contiguous."""
    gpu_slots, across, on_host = (torch.empty_like(ids) for _ in range(3))
    num_pairs = ids.numel()
    block = _PAIRS if share is None else max(16, padded(num_pairs))
    routing_kernels.divide[(-(-num_pairs // block),)](
        ids,
        ids if slots is None else slots,  # any pointer, if it is not read; the same for the share
        num_across if share is None else share,
        num_across,
        ids if uses is None else uses,
        gpu_slots,
        across,
        on_host,
        phase,
        num_pairs,
        HAS_SLOTS=slots is not None,
        SHARES=share is not None,
        COUNTS=uses is not None,
        PAIRS=block,
        num_warps=4 if share is None or block <= FEW_PAIRS else 32,  # pairs of pairs stay in registers
        **early(ids.device),
    )
    return Division(gpu_slots, across, on_host)


def fused_groups(ids: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Group pairs, ids int32 [T, k], contiguous, by expert, in one launch. Returns their stable order int32 [T * k],
    with pairs without an expert last, and tiles int32 [T * k, 3], each an expert and its bounds in the order. Each
    distinct expert has one tile; the others have expert -1. At most FEW_PAIRS pairs, because all pairs are compared
    with each other."""
    num_pairs = ids.numel()
    order, tiles = ids.new_empty(num_pairs), ids.new_empty((num_pairs, 3))
    block = max(16, padded(num_pairs))
    routing_kernels.group_pairs[(1,)](ids, order, tiles, num_pairs, num_experts, PAIRS=block)
    return order, tiles


def ordered_groups(
    ids: torch.Tensor, num_experts: int, block: int, num_tiles: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group any number of pairs, ids int32 [T, k], contiguous, by expert, in two launches. Returns their stable order
    int32 [T * k], with pairs without an expert last, and tiles int32 [num_tiles, 3], each an expert and the bounds of
    up to `block` of its pairs in the order; spare tiles have expert -1."""
    num_pairs = ids.numel()
    order, tiles = ids.new_empty(num_pairs), ids.new_empty((num_tiles, 3))
    begins = ids.new_empty(num_experts + 1)
    routing_kernels.order_pairs[(num_experts + 1,)](ids, order, begins, num_pairs, num_experts, PAIRS=_ORDERED)
    experts = max(16, padded(num_experts))
    routing_kernels.place_tiles[(-(-num_tiles // _TILES),)](
        begins, tiles, num_tiles, num_experts, BLOCK=block, EXPERTS=experts, TILES=_TILES
    )
    return order, tiles
