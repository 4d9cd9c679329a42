"""Selects the positions that a token attends to: the protocol, and a plain implementation (DeepSeek-V3.2-Exp, §2.1).

A position's score is Σ over heads of weight · max(0, query · key). Of the positions that a token sees, the top_k with
the highest scores are selected; ties go to the lower position (decision 42). Where neighbouring tokens share a key,
pools have scores, and top_k / pool of them are selected.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import torch

from ballast.model.hybrid.sparse.sizes import IndexSizes, tokens_at_once
from ballast.model.hybrid.steps.step import Step

_PRODUCT_BYTES = 64 << 20
"""Maximum memory for the products of heads."""


class PositionChoice(Protocol):
    """The selection by one model's indexers. Shapes: T tokens, H index heads."""

    def __call__(
        self, query: torch.Tensor, weights: torch.Tensor | None, keys: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """query [T, H, key_dim] in the keys' type, weights float32 [T, H] (None: the sizes have none), keys [slots,
        key_dim], owners int32 [T], the request of each token → int32 [T, most_chosen]. For a token that sees n
        positions, the first `num_chosen(n)` entries are the selected positions, ascending; the other entries are
        undefined. Scores are float32. With pools, keys are [slots / pool, key_dim]."""


class PlainPositionChoice:
    """Selection by torch operations, on any device. It reads lengths on the host, so CUDA graphs cannot capture it."""

    def __init__(self, sizes: IndexSizes) -> None:
        self._sizes = sizes

    def __call__(
        self, query: torch.Tensor, weights: torch.Tensor | None, keys: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `PositionChoice`."""
        sizes, requests = self._sizes, step.requests
        chosen = torch.zeros((len(query), sizes.top_pools), dtype=torch.int32, device=query.device)
        bounds = itertools.pairwise(requests.host_begins.tolist())
        for request, (length, (first, last)) in enumerate(zip(requests.host_lens.tolist(), bounds, strict=True)):
            num_keys = length // sizes.pool
            if num_keys == 0:
                continue
            count = min(num_keys, sizes.top_pools)
            blocks = requests.blocks[request, : -(-num_keys // sizes.block_pools)]
            piece = min(tokens_at_once(num_keys), max(1, _PRODUCT_BYTES // (4 * sizes.num_heads * num_keys)))
            for begin in range(first, last, piece):
                own = slice(begin, min(begin + piece, last))
                own_weights = None if weights is None else weights[own]
                scores = self.scores(query[own], own_weights, keys, blocks)[:, :num_keys]
                num_seen = (step.positions[own] + 1) // sizes.pool
                chosen[own, :count] = highest(scores, num_seen, count)
        return chosen if sizes.pool == 1 or not sizes.spreads else spread(chosen, step.positions + 1, sizes)

    def scores(
        self, query: torch.Tensor, weights: torch.Tensor | None, keys: torch.Tensor, blocks: torch.Tensor
    ) -> torch.Tensor:
        """Scores [T, positions or pools of blocks] of tokens of one request, including those that the tokens do not
        see."""
        sizes = self._sizes
        offsets = torch.arange(sizes.block_pools, device=query.device)
        own = keys[(blocks[:, None] * sizes.block_pools + offsets).flatten()].float()
        products = torch.einsum("thk,nk->thn", query.float(), own)
        factors = sizes.scale if weights is None else (weights * sizes.scale)[..., None]
        return (torch.where(products < 0, 0.0, products) * factors).sum(1)


def num_chosen(num_seen: torch.Tensor, sizes: IndexSizes) -> torch.Tensor:
    """How many positions tokens attend to that see `num_seen` positions each."""
    return num_seen.minimum(sizes.top_k + num_seen % sizes.pool)


def spread(pools: torch.Tensor, num_seen: torch.Tensor, sizes: IndexSizes) -> torch.Tensor:
    """The positions [T, most_chosen] that tokens with these selected pools [T, top_pools] attend to, each of which sees
    `num_seen` [T] positions: those of the pools, then those after the last complete pool."""
    place = torch.arange(sizes.most_chosen, device=pools.device)
    num_complete = (num_seen // sizes.pool)[:, None]
    num_pooled = num_complete.clamp(max=sizes.top_pools) * sizes.pool
    pooled = pools[:, (place // sizes.pool).clamp(max=sizes.top_pools - 1)] * sizes.pool + place % sizes.pool
    return torch.where(place < num_pooled, pooled, num_complete * sizes.pool + place - num_pooled).int()


def highest(scores: torch.Tensor, num_seen: torch.Tensor, k: int) -> torch.Tensor:
    """For each row of scores [T, n], the k positions below num_seen [T] that the rule selects, ascending int32 [T, k].
    If fewer are visible, the remaining entries are undefined."""
    position = torch.arange(scores.shape[1], device=scores.device)
    # The lower of two positions with equal scores has the larger key.
    keys = (_order(scores) << 32) - position
    keys = torch.where(position < num_seen[:, None], keys, torch.iinfo(torch.int64).min + scores.shape[1] - position)
    return keys.topk(k, dim=1, sorted=False).indices.sort(1).values.int()


def _order(scores: torch.Tensor) -> torch.Tensor:
    """Integers, int64, in the order of the scores: -0 equals 0, NaN is the largest."""
    bits = torch.where(scores == 0, 0.0, scores).view(torch.int32).long()
    order = torch.where(bits < 0, -(2**31) - 1 - bits, bits)  # more negative scores are lower
    return torch.where(scores.isnan(), 2**31 - 1, order)
