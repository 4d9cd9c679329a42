"""Attention to selected positions: the protocol, and a plain implementation."""

from __future__ import annotations

from typing import Protocol

import torch

from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.sparse.choice import num_chosen
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.steps.step import Step

_GATHERED_BYTES = 64 << 20
"""Maximum memory for rows of the cache as float32."""


class ChosenAttention(Protocol):
    """Attention of one model to selected positions. Shapes: T tokens, H heads."""

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """query float32 [T, H, key_dim], cache [slots, row_width], chosen int32 [T, most_chosen] from `PositionChoice`,
        owners int32 [T], the request of each token → float32 [T, H, v_dim]."""


class PlainChosenAttention:
    """`ChosenAttention` in float32 by torch operations, on any device."""

    def __init__(self, sizes: Sizes, index: IndexSizes) -> None:
        self._sizes = sizes
        self._index = index

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `ChosenAttention`."""
        sizes, heads = self._sizes, self._sizes.num_kv_heads
        # Grouped by head of the cache, then by query of its group.
        groups = query.view(len(query), heads, -1, sizes.key_dim)
        attended = query.new_empty((*groups.shape[:3], sizes.v_dim))
        piece = max(1, _GATHERED_BYTES // (4 * chosen.shape[1] * sizes.row_width))
        for begin in range(0, len(query), piece):
            tokens = slice(begin, begin + piece)
            counts = num_chosen(step.positions[tokens, None] + 1, self._index)
            is_hidden = torch.arange(chosen.shape[1], device=query.device) >= counts
            positions = chosen[tokens].long().masked_fill(is_hidden, 0)
            blocks = step.requests.blocks[owners[tokens, None].long(), positions // sizes.block_tokens].long()
            rows = cache[blocks * sizes.block_tokens + positions % sizes.block_tokens].float()
            keys = rows[..., : heads * sizes.key_dim].view(*rows.shape[:2], heads, -1)
            values = rows[..., sizes.values_at :][..., : heads * sizes.v_dim].view(*rows.shape[:2], heads, -1)
            scores = torch.einsum("thgk,tnhk->thgn", groups[tokens], keys) * sizes.scale
            shares = scores.masked_fill_(is_hidden[:, None, None], -torch.inf).softmax(-1)
            attended[tokens] = torch.einsum("thgn,tnhv->thgv", shares, values)
        return attended.flatten(1, 2)
