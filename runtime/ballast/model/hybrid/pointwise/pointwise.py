"""The pointwise parts of a layer, between its matrix products and attention: norms, rotation, cache rows, gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ballast.families.architecture import Unit
from ballast.model.hybrid.pointwise.pools import BlockTokens, PooledTokens, PoolMemory
from ballast.model.hybrid.steps.step import Step


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Bias and norm of the heads of a token in grouped-query attention, applied before attention; None if a model has
    none."""

    query_bias: torch.Tensor | None  # [H * K]
    key_bias: torch.Tensor | None  # [G * K]
    value_bias: torch.Tensor | None  # [G * V]
    query_norm: torch.Tensor | None  # [K], the same for all heads, or [H * K], one norm over all heads together
    key_norm: torch.Tensor | None  # [K] or [G * K]
    value_scale: float = 1.0
    """Factor of values, after their bias."""


INDEX_NORM_EPS = 1e-6
"""Epsilon of the layer norm of an indexer's keys in DeepSeek's code and llama.cpp; files do not contain it."""


@dataclass(frozen=True, slots=True)
class IndexNorm:
    """The layer norm of an indexer's key, and the rotation of its key and queries."""

    weight: torch.Tensor  # [key_dim]
    shift: torch.Tensor  # [key_dim]
    pairs_apart: bool
    """If true, i and i + rope_dim / 2 are rotated together, otherwise 2i and 2i + 1."""


class Pointwise(Protocol):
    """The pointwise operations of one model. Shapes: T tokens, D hidden, H heads, L = kv_lora_rank + rope_dim; G key
    and value heads, with keys of width K and values of width V. All types are float32 except the cache's."""

    num_saturated: torch.Tensor  # int64 []
    """Count of numbers so far that were too large for their destination, and were replaced by the largest number that
    it holds."""

    def add_and_norm(self, stream: torch.Tensor, parts: tuple[torch.Tensor, ...], weight: torch.Tensor) -> torch.Tensor:
        """Add `parts`, each [T, D], to the stream in place; returns its RMS norm [T, D]."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of [T, N]."""

    def query_and_cache(
        self,
        nope: torch.Tensor,
        heads: torch.Tensor,
        latents: torch.Tensor,
        weight: torch.Tensor,
        cache: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """The query [T, H, L]: nope [T, H, kv_lora_rank], then the last rope_dim entries of `heads` [T, H, …] rotated;
        all times the factor of the token's position, if the model scales queries.
        The cache's slots get latents [T, L]: the latent normed by `weight`, then the rotated key, which no norm bounds.

        Rounding makes neither of them infinite: a number that is too large becomes the largest of its sign, and is
        counted. NaN stays NaN, so that its request fails."""

    def cache_rows(self, latents: torch.Tensor, weight: torch.Tensor, cache: torch.Tensor, step: Step) -> None:
        """As `query_and_cache`, but only for the cache."""

    def rotated_query(self, heads: torch.Tensor, step: Step, scale: float, out: torch.Tensor) -> None:
        """Write `heads` [T, H, …] to `out`, which has the cache's type: the last rope_dim entries of each head are
        rotated, numbers are scaled by position and clamped as in `query_and_cache`, and the result is multiplied by
        `scale`."""

    def heads_and_cache(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        weights: HeadWeights,
        cache: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """Returns the query [T, H, K] for the products query [T, H, K], key [T, G, K] and value [T, G, V], whose tokens
        may be strided, as may the query's heads. Each product gets its bias. Queries and keys are normed, and the first
        rope_dim entries of each head are rotated, i with i + rope_dim / 2. The cache's slots get the keys of all heads,
        then the values. Numbers are clamped as in `query_and_cache`."""

    def index_query_and_key(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        norm: IndexNorm,
        keys: torch.Tensor,
        step: Step,
        normed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the index query [T, H, key_dim], in the type of `keys`, for the products query [T, H, key_dim] and
        key [T, key_dim], whose tokens may be strided. The slots of `keys` [slots, key_dim] get the normed key. The
        first rope_dim entries of both are rotated. Numbers are clamped as in `query_and_cache`. If tokens share keys,
        `normed` float32 [T, key_dim] gets the key, and `keys` only gives a type."""

    def keep_pools(self, tokens: PooledTokens, memory: PoolMemory, step: Step) -> None:
        """Write the shared keys of the pools that the step completes, and the states that its rows leave."""

    def block_queries(self, query: torch.Tensor, norm: torch.Tensor, keys: torch.Tensor, step: Step) -> torch.Tensor:
        """The RMS norm of each index query [T, H, key_dim], whose tokens may be strided, with weight [key_dim], in the
        type of `keys`. The first rope_dim entries are rotated, i with i + rope_dim / 2. Numbers are clamped as in
        `query_and_cache`."""

    def keep_blocks(self, tokens: BlockTokens, memory: PoolMemory, step: Step) -> None:
        """Write the keys of the blocks of positions that the step completes, clamped as in `query_and_cache`, and the
        states that its rows leave."""

    def gated(self, gate: torch.Tensor, up: torch.Tensor, *, unit: Unit | None = None) -> torch.Tensor:
        """silu(gate) * up, or the unit of both, each [T, N]."""

    def gate_rows(self, rows: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiply the rows [T, D] in place by the sigmoid of the products of x [T, D] and weight [D]; returns them."""
