"""Selects the positions that a token attends to: the protocol, and a plain implementation (DeepSeek-V3.2-Exp, §2.1).

A position's score is Σ over heads of weight · max(0, query · key). Of the positions that a token sees, the top_k with
the highest scores are selected; ties go to the lower position (decision 42).
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
        self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """query [T, H, key_dim] in the keys' type, weights float32 [T, H], keys [slots, key_dim], owners int32 [T], the
        request of each token → int32 [T, top_k]. For a token that sees n positions, the first min(n, top_k) entries are
        the selected positions, ascending; the other entries are undefined. Scores are float32."""


class PlainPositionChoice:
    """Selection by torch operations, on any device. It reads lengths on the host, so CUDA graphs cannot capture it."""

    def __init__(self, sizes: IndexSizes) -> None:
        self._sizes = sizes

    def __call__(
        self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, owners: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `PositionChoice`."""
        sizes, requests = self._sizes, step.requests
        chosen = torch.zeros((len(query), sizes.top_k), dtype=torch.int32, device=query.device)
        bounds = itertools.pairwise(requests.host_begins.tolist())
        for request, (num_keys, (first, last)) in enumerate(zip(requests.host_lens.tolist(), bounds, strict=True)):
            num_chosen = min(num_keys, sizes.top_k)
            blocks = requests.blocks[request, : -(-num_keys // sizes.block_tokens)]
            piece = min(tokens_at_once(num_keys), max(1, _PRODUCT_BYTES // (4 * sizes.num_heads * num_keys)))
            for begin in range(first, last, piece):
                own = slice(begin, min(begin + piece, last))
                scores = self.scores(query[own], weights[own], keys, blocks)[:, :num_keys]
                chosen[own, :num_chosen] = highest(scores, step.positions[own] + 1, num_chosen)
        return chosen

    def scores(
        self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, blocks: torch.Tensor
    ) -> torch.Tensor:
        """Scores [T, positions of blocks] of tokens of one request, including positions that the tokens do not see."""
        sizes = self._sizes
        offsets = torch.arange(sizes.block_tokens, device=query.device)
        own = keys[(blocks[:, None] * sizes.block_tokens + offsets).flatten()].float()
        products = torch.einsum("thk,nk->thn", query.float(), own)
        weighted = torch.where(products < 0, 0.0, products) * (weights * sizes.scale)[..., None]
        return weighted.sum(1)


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
