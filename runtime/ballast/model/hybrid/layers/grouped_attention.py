"""Grouped-query attention of a slice, to all positions or to selected blocks.

Shapes: T tokens, H query heads, G key and value heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from ballast.model.hybrid.attention.attention import Attention
from ballast.model.hybrid.attention.device_kv_pool import LayerCache
from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.layers.block_indexer import PRODUCTS, BlockIndexerWeights, choose_blocks
from ballast.model.hybrid.linear import Linear, Linears
from ballast.model.hybrid.pointwise.pointwise import HeadWeights, Pointwise
from ballast.model.hybrid.sparse.sparse import SparseAttention
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.grouped import GroupedSpec


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """A layer's weights for G heads with keys of width K and values of width V."""

    heads: Linears  # D → H * K, or H * 2 K with gates; G * K; G * V; and the products of an indexer
    of_heads: HeadWeights
    sinks: torch.Tensor | None  # [H]
    gate: Linear | None  # D → H, or H * V with gates of entries
    output: Linear  # H * V → D
    output_bias: torch.Tensor | None  # [D]
    indexer: BlockIndexerWeights | None

    @staticmethod
    def load(tensors: DeviceTensors, mixer: GroupedSpec) -> GroupedWeights:
        products = ("query", "key", "value", *(() if mixer.index is None else PRODUCTS))
        return GroupedWeights(
            heads=tensors.sliced_linears("qkv") if mixer.fuses_qkv else tensors.linears(*products),
            of_heads=HeadWeights(
                query_bias=tensors.optional_vector("query_bias"),
                key_bias=tensors.optional_vector("key_bias"),
                value_bias=tensors.optional_vector("value_bias"),
                query_norm=tensors.optional_vector("query_norm"),
                key_norm=tensors.optional_vector("key_norm"),
                value_scale=mixer.value_scale,
            ),
            sinks=tensors.optional_vector("sinks"),
            gate=tensors.optional_linear("head_gate"),
            output=tensors.linear("output"),
            output_bias=tensors.optional_vector("output_bias"),
            indexer=None if mixer.index is None else BlockIndexerWeights.load(tensors),
        )


class GroupedAttention:
    """The grouped `LayerKind` of layers with one mixer."""

    def __init__(self, mixer: GroupedSpec, pointwise: Pointwise, attend: Attention) -> None:
        self._num_heads = mixer.num_heads
        self._num_kv_heads = mixer.num_kv_heads
        self._head_dim = mixer.head_dim
        self._pointwise = pointwise
        self.attend = attend
        self.has_window = mixer.window is not None
        self._gate = functional.softplus if mixer.gate == "softplus" else functional.sigmoid

    def __call__(self, weights: GroupedWeights, normed: torch.Tensor, cache: LayerCache, step: Step) -> torch.Tensor:
        """See `LayerKind`."""
        num_tokens = len(normed)
        query, key, value, *of_indexer = weights.heads(normed)
        if weights.indexer is not None:
            assert isinstance(self.attend, SparseAttention)
            index_query, index_key = of_indexer
            products = index_query, index_key
            choose_blocks(weights.indexer, products, cache, step, self._pointwise, self.attend)
            del index_query, index_key, products
        del of_indexer
        query, *gates = torch.split(query.view(num_tokens, self._num_heads, -1), self._head_dim, 2)
        turned = self._pointwise.heads_and_cache(
            query,
            key.view(num_tokens, self._num_kv_heads, -1),
            value.view(num_tokens, self._num_kv_heads, -1),
            weights.of_heads,
            cache.rows,
            step,
        )
        del query, key, value
        attended = self.attend(turned, cache.rows, step, weights.sinks)
        if weights.gate is not None:
            attended *= self._gate(weights.gate(normed)).view(num_tokens, self._num_heads, -1)
        for gate in gates:  # one, if each head's query is followed by a gate
            attended *= functional.sigmoid(gate)
        out = weights.output(attended.flatten(1))
        return out if weights.output_bias is None else out.add_(weights.output_bias)

    def long(
        self, weights: GroupedWeights, normed: torch.Tensor, cache: LayerCache, step: Step, out: torch.Tensor
    ) -> None:
        """Never called: `GROUPED_SLICE_SIZES` has no long slices."""
        raise AssertionError("a long slice of grouped-query attention")
