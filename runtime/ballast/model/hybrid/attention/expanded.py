"""Attention of long prompts outside the latent space.

In its absorbed form, attention takes rank + rope_dim + rank multiplications per query, key and head: 1,088 in
DeepSeek's models. With keys and values expanded from the latent space it takes nope_dim + rope_dim + v_dim, 320;
expanding one key costs as much as about a hundred queries. To fit long contexts in memory, the context is expanded in
pieces, and the results of the pieces are merged by their sums of weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from ballast.model.hybrid.attention.attention import floats
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.short_rows import ShortRows

_ROWS = 256
"""Number of matrix columns that are read at a time, as the products with that many unit vectors, padded with zeros.
Products of this many tokens use none of a layer's counters (`panels/panel_linear.py`), which a decode step on another
stream may be using."""


@dataclass(frozen=True, slots=True)
class ExpandedSizes:
    """Sizes of one model's attention outside the latent space, and of its cache."""

    num_heads: int
    rank: int
    """kv_lora_rank, the width of the latents."""
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    """The factor of attention scores."""
    block_tokens: int


@dataclass(frozen=True, slots=True)
class ExpandedWeights:
    """The matrices that expand keys and values from the latent space. Each is two terms of the cache's type (half
    precision for 8 bits): the
    rounded number, and the remainder."""

    keys: torch.Tensor  # [2 * rank, H * nope_dim]
    values: torch.Tensor  # [2 * rank, H * v_dim]

    def of_heads(self, first: int, end: int, num_heads: int) -> ExpandedWeights:
        """The matrices of heads first … end - 1 of `num_heads`, contiguous."""
        by_head = (matrix.view(len(matrix), num_heads, -1) for matrix in (self.keys, self.values))
        return ExpandedWeights(*(matrix[:, first:end].flatten(1).contiguous() for matrix in by_head))


class ExpandedKernels(Protocol):
    """The operations that `ExpandedAttention` needs. Shapes: T queries, N keys, H heads, which may be a part of the
    model's, K = nope_dim + rope_dim, V = v_dim."""

    def keys(self, nope: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """nope [N, H * nope_dim], rope [N, rope_dim] → [N, H, K], where all heads have the same rope. Infinite numbers
        become the largest finite number and are counted."""

    def values(self, values: torch.Tensor) -> torch.Tensor:
        """[N, H * V] → [N, H, V], in place. Infinite numbers become the largest finite number and are counted."""

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """query [T, H, K], scaled, keys [N, H, K] and values [N, H, V] → averages of values [T, H, V], and base-2
        logarithms of the sums of weights float32 [T, H]. If causal, T equals N and query t attends to keys 0…t;
        otherwise each query attends to all keys."""

    def merge(self, total: torch.Tensor, weight: torch.Tensor, part: torch.Tensor, part_weight: torch.Tensor) -> None:
        """Merge averages over other keys, part [T, H, V] and part_weight float32 [T, H], into total float32 [T, H, V]
        and weight float32 [T, H]."""


class ExpandedAttention:
    """Attention of consecutive tokens of one request, which are in the cache. Stateless."""

    def __init__(self, sizes: ExpandedSizes, kernels: ExpandedKernels, piece_keys: int) -> None:
        """`piece_keys`: maximum number of expanded keys at a time, and of queries per call."""
        self.sizes = sizes
        self._kernels = kernels
        self._piece_keys = piece_keys

    def weights(self, k_up: Linear, v_up: Linear, dtype: torch.dtype, device: torch.device) -> ExpandedWeights:
        """The matrices of a layer. k_up: per head nope_dim → rank; v_up: per head rank → v_dim. They are read as
        products with unit vectors, which works for any weight type."""
        sizes = self.sizes
        keys = torch.cat(list(_columns(k_up, sizes.nope_dim, sizes.num_heads, device)))  # [nope_dim, H, rank]
        values = torch.cat(list(_columns(v_up, sizes.rank, sizes.num_heads, device)))  # [rank, H, v_dim]
        return ExpandedWeights(_two_terms(keys.permute(2, 1, 0), dtype), _two_terms(values, dtype))

    def __call__(self, query: torch.Tensor, weights: ExpandedWeights, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """query [T, H, nope_dim + rope_dim] in `multiplied_type`, rotated and scaled; cache as for `Attention` →
        float32 [T, H, v_dim]. `step` is one request's."""
        averages = self.averages(query, weights)
        for piece in self.pieces(len(query), cache, step):
            averages.add(piece)
        return averages.total

    def averages(self, query: torch.Tensor, weights: ExpandedWeights) -> HeadAverages:
        """The averages of some heads or of all, before any piece is added."""
        return HeadAverages(self.sizes, self._kernels, query, weights)

    def pieces(self, num_queries: int, cache: torch.Tensor, step: Step) -> Iterator[ContextPiece]:
        """The positions that the last `num_queries` tokens of the request attend to; their own first."""
        [end] = step.requests.host_lens.tolist()
        begin = end - num_queries
        most = self._piece_keys
        assert 0 < num_queries <= most, f"{num_queries} queries in a call; the maximum is {most}"
        yield ContextPiece(self._rows(cache, step, begin, end), is_causal=True)
        for first in range(0, begin, most):
            last = min(first + most, begin)
            yield ContextPiece(self._rows(cache, step, first, last), is_causal=False)

    def _rows(self, cache: torch.Tensor, step: Step, begin: int, end: int) -> torch.Tensor:
        """The rows of the cache of positions begin … end - 1 of the request."""
        block_tokens = self.sizes.block_tokens
        blocks = step.requests.blocks[0, begin // block_tokens : -(-end // block_tokens)]
        offset = begin % block_tokens
        return cache.view(-1, block_tokens, cache.shape[1])[blocks].flatten(0, 1)[offset : offset + end - begin]


@dataclass(frozen=True, slots=True)
class ContextPiece:
    """Consecutive positions of a request, which queries attend to."""

    rows: torch.Tensor
    """Of the cache."""
    is_causal: bool
    """Whether they are the queries' own positions, so that query t attends to the first t + 1 only."""


class HeadAverages:
    """The averages of values to which some heads attend, over one piece of the context after the other."""

    def __init__(
        self, sizes: ExpandedSizes, kernels: ExpandedKernels, query: torch.Tensor, weights: ExpandedWeights
    ) -> None:
        """`query` and `weights` are those of the heads."""
        self._sizes = sizes
        self._kernels = kernels
        self._query = query
        self._weights = weights
        self._sums: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def total(self) -> torch.Tensor:
        """The averages float32 [T, heads, v_dim] over the pieces so far, at least one."""
        assert self._sums is not None
        return self._sums[0]

    def add(self, piece: ContextPiece) -> None:
        """Attend to a piece."""
        part, part_weight = self._attended(piece)
        if self._sums is None:
            self._sums = part.float(), part_weight
        else:
            self._kernels.merge(*self._sums, part, part_weight)

    def _attended(self, piece: ContextPiece) -> tuple[torch.Tensor, torch.Tensor]:
        rows, rank = piece.rows, self._sizes.rank
        if rows.dtype == torch.uint8:
            rows = floats(rows, ShortRows.of_latents(rank, self._sizes.rope_dim), self._weights.keys.dtype)
        latents = rows[:, :rank].repeat(1, 2)
        keys = self._kernels.keys(latents @ self._weights.keys, rows[:, rank:])
        values = self._kernels.values(latents @ self._weights.values)
        return self._kernels.attend(self._query, keys, values, is_causal=piece.is_causal)


class PlainExpandedKernels:
    """`ExpandedKernels` in torch's operations, on any device."""

    def __init__(self, sizes: ExpandedSizes, num_saturated: torch.Tensor) -> None:
        """`num_saturated` int64 []: the counter of infinite numbers."""
        self._sizes = sizes
        self._num_saturated = num_saturated

    def keys(self, nope: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """See `ExpandedKernels`."""
        heads = self._bounded(nope).view(len(nope), -1, self._sizes.nope_dim)
        return torch.cat([heads, rope[:, None].expand(-1, heads.shape[1], -1)], -1)

    def values(self, values: torch.Tensor) -> torch.Tensor:
        """See `ExpandedKernels`."""
        return self._bounded(values).view(len(values), -1, self._sizes.v_dim)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ExpandedKernels`."""
        scores = torch.einsum("qhd,khd->hqk", query.float(), keys.float())
        if is_causal:
            scores.masked_fill_(torch.ones_like(scores[0], dtype=torch.bool).triu_(1), -torch.inf)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.float()).to(query.dtype)
        return attended, scores.logsumexp(-1).T * math.log2(math.e)

    def merge(self, total: torch.Tensor, weight: torch.Tensor, part: torch.Tensor, part_weight: torch.Tensor) -> None:
        """See `ExpandedKernels`."""
        merged = torch.logaddexp2(weight, part_weight)
        total.mul_(torch.exp2(weight - merged)[..., None])
        total.add_(part.float() * torch.exp2(part_weight - merged)[..., None])
        weight.copy_(merged)

    def _bounded(self, values: torch.Tensor) -> torch.Tensor:
        largest = torch.finfo(values.dtype).max
        self._num_saturated += values.isinf().sum()
        return values.clamp_(-largest, largest)


def _columns(linear: Linear, num_cols: int, num_heads: int, device: torch.device) -> Iterator[torch.Tensor]:
    """The columns of each head's matrix [_, heads, rows], up to _ROWS at a time."""
    ones = torch.eye(max(num_cols, _ROWS), num_cols, device=device)[:, None, :]
    for rows in torch.split(ones, _ROWS):
        product = linear(rows.expand(-1, num_heads, -1).contiguous())
        yield product.view(len(rows), num_heads, -1)[:num_cols]


def _two_terms(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 [rows, heads, cols] → [2 * rows, heads * cols]."""
    flat = matrix.flatten(1)
    upper = flat.to(dtype)
    return torch.cat([upper, (flat - upper.float()).to(dtype)])
