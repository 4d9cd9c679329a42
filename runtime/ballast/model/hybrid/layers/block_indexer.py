"""The indexer of grouped attention that selects blocks of positions (Qwen3.8-Flash-Next).

Shapes: T tokens, H index heads, K numbers of a head's query and of a key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ballast.model.hybrid.attention.device_kv_pool import LayerCache
from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.pointwise.pools import BlockTokens, PoolMemory
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.steps.step import Step

PRODUCTS = ("index_query", "index_key")
"""The roles of its matrices, whose input is that of attention."""


@dataclass(frozen=True, slots=True)
class BlockIndexerWeights:
    """The norms of a layer's indexer."""

    query: torch.Tensor  # [K]
    key: torch.Tensor  # [K]

    @staticmethod
    def load(tensors: DeviceTensors) -> BlockIndexerWeights:
        return BlockIndexerWeights(tensors.vector("index_query_norm"), tensors.vector("index_key_norm"))


def choose_blocks(
    weights: BlockIndexerWeights,
    products: tuple[torch.Tensor, torch.Tensor],
    cache: LayerCache,
    step: Step,
    pointwise: Pointwise,
    attend: SparseAttention,
) -> None:
    """Write the keys of the blocks that the step completes to the cache, and select the positions to attend to.
    `products`: those of PRODUCTS, [T, H * K] and [T, K]."""
    assert cache.index_keys is not None
    assert cache.incomplete_pools is not None
    query, key = products
    keys = cache.index_keys.view(-1, key.shape[1])
    normed = pointwise.block_queries(query.view(len(key), -1, key.shape[1]), weights.query, keys, step)
    pointwise.keep_blocks(BlockTokens(key, weights.key), PoolMemory(keys, cache.incomplete_pools), step)
    attend.choose(normed, None, keys, step)
