"""Latent attention of a slice: inside the latent space, or outside it for long slices; to all positions, or to those
that an indexer selects.

Shapes: T tokens, D hidden, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ballast.model.hybrid.attention.attention import Attention, multiplied_type
from ballast.model.hybrid.attention.device_kv_pool import LayerCache
from ballast.model.hybrid.attention.divided_heads import DividedHeads
from ballast.model.hybrid.attention.expanded import ExpandedAttention
from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.linear import Linear, Linears
from ballast.model.hybrid.pointwise.pointwise import IndexNorm, Pointwise
from ballast.model.hybrid.pointwise.pools import PooledTokens, PoolMemory
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.steps.slices import PRODUCT_TOKENS, even_bounds
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.latent import IndexSpec, LatentSpec


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """The indexer of a layer with H index heads. It selects the positions that attention reads. `LatentWeights.down`
    computes its key."""

    query_up: Linear  # q_lora_rank → H * key_dim
    norm: IndexNorm
    head_weights: Linear  # D → H, in float32 throughout: rounding would change the selection
    pool_gate: Linear | None  # D → key_dim, the same; None: each token has a key of its own
    pool_offset: torch.Tensor | None  # [pool, key_dim]

    @staticmethod
    def load(tensors: DeviceTensors, index: IndexSpec) -> IndexerWeights:
        has_pools = index.pool > 1
        offset = tensors.vector("index_pool_offset").view(index.pool, index.key_dim) if has_pools else None
        return IndexerWeights(
            query_up=tensors.linear("index_query_up"),
            norm=IndexNorm(
                tensors.vector("index_key_norm"), tensors.vector("index_key_shift"), pairs_apart=index.pairs_apart
            ),
            head_weights=tensors.float_linear("index_head_weights"),
            pool_gate=tensors.float_linear("index_pool_gate") if has_pools else None,
            pool_offset=offset,
        )


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """A layer's weights. Queries are projected through a low rank (V2, V3) or directly (V2-Lite)."""

    down: Linears  # D → q_lora_rank, or H * (nope + rope) without a query rank; kv_lora_rank + rope;
    # key_dim, if there is an indexer
    query_norm: torch.Tensor | None  # [q_lora_rank]
    query_up: Linear | None  # q_lora_rank → H * (nope + rope)
    kv_a_norm: torch.Tensor  # [kv_lora_rank]
    k_up: Linear  # per head nope → kv_lora_rank
    v_up: Linear  # per head kv_lora_rank → v
    output: Linear  # H * v → D
    indexer: IndexerWeights | None

    @staticmethod
    def load(tensors: DeviceTensors, mixer: LatentSpec) -> LatentWeights:
        has_rank = mixer.q_lora_rank is not None
        indexer = mixer.index if mixer.has_indexer else None
        return LatentWeights(
            down=tensors.linears("query_down" if has_rank else "query_up", "kv_a", *(["index_key"] if indexer else [])),
            query_norm=tensors.optional_vector("query_norm"),
            query_up=tensors.linear("query_up") if has_rank else None,
            kv_a_norm=tensors.vector("kv_a_norm"),
            k_up=tensors.head_linear("k_up"),
            v_up=tensors.head_linear("v_up"),
            output=tensors.linear("output"),
            indexer=None if indexer is None else IndexerWeights.load(tensors, indexer),
        )


class LatentAttention:
    """The latent `LayerKind` of layers with one mixer."""

    def __init__(
        self,
        mixer: LatentSpec,
        pointwise: Pointwise,
        attend: Attention,
        expanded: ExpandedAttention | DividedHeads | None,
    ) -> None:
        """`attend`: `SparseAttention` if positions are selected. `expanded` None: every slice is computed in the latent
        space, so there must be no long slices."""
        self._mixer = mixer
        self._pointwise = pointwise
        self.attend = attend
        self.has_window = False
        self._expanded = expanded

    def __call__(self, weights: LatentWeights, normed: torch.Tensor, cache: LayerCache, step: Step) -> torch.Tensor:
        """See `LayerKind`; in the latent space."""
        queries, latents, *index_keys = self._down(weights, normed)
        if weights.indexer is not None:
            self._choose(weights.indexer, normed, queries, index_keys[0], cache, step)
        heads = self._heads(weights, queries)
        nope = weights.k_up(heads[..., : self._mixer.nope_dim])
        query = self._pointwise.query_and_cache(nope, heads, latents, weights.kv_a_norm, cache.rows, step)
        del queries, heads, index_keys, nope
        attended = self.attend(query, cache.rows, step)
        return weights.output(weights.v_up(attended).flatten(1))

    def long(
        self, weights: LatentWeights, normed: torch.Tensor, cache: LayerCache, step: Step, out: torch.Tensor
    ) -> None:
        """See `LayerKind`; with keys and values expanded from the latent space."""
        assert self._expanded is not None
        num_tokens = len(normed)
        shape = num_tokens, self._mixer.num_heads, self._mixer.query_dim
        dtype = multiplied_type(cache.rows.dtype)
        query = normed.new_empty(shape, dtype=dtype)
        bounds = list(even_bounds(0, num_tokens, PRODUCT_TOKENS))
        for begin, end in bounds:
            queries, latents = self._down(weights, normed[begin:end])
            heads = self._heads(weights, queries)
            own = step.rows(begin, end)
            self._pointwise.rotated_query(heads, own, self._expanded.sizes.scale, query[begin:end])
            self._pointwise.cache_rows(latents, weights.kv_a_norm, cache.rows, own)
            del queries, heads, latents
        matrices = self._expanded.weights(weights.k_up, weights.v_up, dtype, cache.rows.device)
        attended = self._expanded(query, matrices, cache.rows, step).flatten(1)
        del query, matrices
        for begin, end in bounds:
            out[begin:end] = weights.output(attended[begin:end])

    def _choose(
        self,
        weights: IndexerWeights,
        normed: torch.Tensor,
        queries: torch.Tensor,
        key: torch.Tensor,
        cache: LayerCache,
        step: Step,
    ) -> None:
        """Write the tokens' index keys to the cache, and select the positions to attend to. queries [T, q_lora_rank],
        key [T, key_dim]."""
        assert isinstance(self.attend, SparseAttention)
        assert cache.index_keys is not None
        query, keys = weights.query_up(queries).view(len(normed), -1, key.shape[1]), cache.index_keys
        if weights.pool_gate is None or weights.pool_offset is None:
            rotated = self._pointwise.index_query_and_key(query, key, weights.norm, keys, step)
        else:
            assert cache.incomplete_pools is not None
            own, gates = normed.new_empty(key.shape), weights.pool_gate(normed)
            rotated = self._pointwise.index_query_and_key(query, key, weights.norm, keys, step, own)
            tokens = PooledTokens(own, gates, weights.pool_offset)
            keys = keys.view(-1, key.shape[1])
            self._pointwise.keep_pools(tokens, PoolMemory(keys, cache.incomplete_pools), step)
        self.attend.choose(rotated, weights.head_weights(normed), keys, step)

    def _down(self, weights: LatentWeights, normed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries in the form that `_heads` accepts, latents [T, kv_lora_rank + rope_dim], not rotated, and the
        indexer's key [T, key_dim] if there is one."""
        queries, *others = weights.down(normed)
        if weights.query_norm is not None:
            queries = self._pointwise.norm(queries, weights.query_norm)
        return queries, *others

    def _heads(self, weights: LatentWeights, queries: torch.Tensor) -> torch.Tensor:
        """Queries by head [T, H, nope_dim + rope_dim], not rotated."""
        heads = queries if weights.query_up is None else weights.query_up(queries)
        return heads.view(len(queries), self._mixer.num_heads, -1)
