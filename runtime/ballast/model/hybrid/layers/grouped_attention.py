"""Grouped-query attention of a slice. Shapes: T tokens, H heads of queries, G of keys and values."""

from __future__ import annotations

import torch

from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.attention.device_kv_pool import LayerCache
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.step import Step
from ballast.model.hybrid.weights import GroupedWeights


class GroupedAttention:
    """The grouped `AttentionKind` of one model."""

    def __init__(self, num_heads: int, num_kv_heads: int, pointwise: Pointwise, attend: Attention) -> None:
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._pointwise = pointwise
        self.attend = attend

    def __call__(self, weights: GroupedWeights, normed: torch.Tensor, cache: LayerCache, step: Step) -> torch.Tensor:
        """See `AttentionKind`."""
        num_tokens = len(normed)
        query, key, value = weights.heads(normed)
        turned = self._pointwise.heads_and_cache(
            query.view(num_tokens, self._num_heads, -1),
            key.view(num_tokens, self._num_kv_heads, -1),
            value.view(num_tokens, self._num_kv_heads, -1),
            weights.of_heads,
            cache.rows,
            step,
        )
        del query, key, value
        return weights.output(self.attend(turned, cache.rows, step).flatten(1))

    def long(
        self, weights: GroupedWeights, normed: torch.Tensor, cache: LayerCache, step: Step, out: torch.Tensor
    ) -> None:
        """Never called: `GROUPED_SLICE_SIZES` has no long slices."""
        raise AssertionError("a long slice of grouped-query attention")
