"""Attention to compressed entries of a slice. Shapes: T tokens, D hidden, H heads of width W, G groups of heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ballast.model.hybrid.compressed.compression import CompressedCache, Compression, EntryTokens
from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.linear import Linear, Linears
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.compressed import CompressedSpec


@dataclass(frozen=True, slots=True)
class EntryIndexWeights:
    """The indexer of a layer. `CompressedWeights.inputs` gives the values of its keys."""

    query_up: Linear  # q_lora_rank → index heads * key_dim
    head_weights: Linear  # D → index heads, in float32 throughout: rounding would change the selection
    gate: Linear  # D → 2 key_dim, the same
    offset: torch.Tensor  # [ratio, 2 key_dim]
    norm: torch.Tensor  # [key_dim]

    @staticmethod
    def load(tensors: DeviceTensors, mixer: CompressedSpec) -> EntryIndexWeights:
        return EntryIndexWeights(
            query_up=tensors.linear("index_query_up"),
            head_weights=tensors.float_linear("index_head_weights"),
            gate=tensors.float_linear("index_entry_gate"),
            offset=tensors.vector("index_entry_offset").view(mixer.ratio, -1),
            norm=tensors.vector("index_entry_norm"),
        )


@dataclass(frozen=True, slots=True)
class CompressedWeights:
    """A layer's weights."""

    norm: torch.Tensor  # [D]
    inputs: Linears  # D → q_lora_rank; W; with entries, their columns twice; with an indexer, its columns
    query_norm: torch.Tensor  # [q_lora_rank]
    query_up: Linear  # q_lora_rank → H * W
    key_norm: torch.Tensor  # [W]
    sinks: torch.Tensor  # [H]
    entry_offset: torch.Tensor | None  # [ratio, columns]; None: the layer has no entries
    entry_norm: torch.Tensor | None  # [W]
    indexer: EntryIndexWeights | None
    output_down: Linear  # per group H / G * W → rank
    output_up: Linear  # G * rank → D

    @staticmethod
    def load(tensors: DeviceTensors, mixer: CompressedSpec) -> CompressedWeights:
        entries = ("entry_value", "entry_gate") if mixer.ratio else ()
        keys = ("index_entry_value",) if mixer.index is not None else ()
        return CompressedWeights(
            norm=tensors.vector("attention_norm"),
            inputs=tensors.linears("query_down", "key", *entries, *keys),
            query_norm=tensors.vector("query_norm"),
            query_up=tensors.linear("query_up"),
            key_norm=tensors.vector("key_norm"),
            sinks=tensors.vector("sinks"),
            entry_offset=tensors.vector("entry_offset").view(mixer.ratio, -1) if mixer.ratio else None,
            entry_norm=tensors.optional_vector("entry_norm"),
            indexer=None if mixer.index is None else EntryIndexWeights.load(tensors, mixer),
            output_down=tensors.head_linear("output_down"),
            output_up=tensors.linear("output_up"),
        )


class CompressedAttention:
    """The `LayerKind` of layers with one mixer. Steps need no plan."""

    attend = None
    has_window = False

    def __init__(self, mixer: CompressedSpec, pointwise: Pointwise, compression: Compression) -> None:
        self._mixer = mixer
        self._pointwise = pointwise
        self._compression = compression

    def __call__(
        self, weights: CompressedWeights, normed: torch.Tensor, cache: CompressedCache, step: Step
    ) -> torch.Tensor:
        """See `LayerKind`."""
        mixer, compression = self._mixer, self._compression
        down, key, *columns = weights.inputs(normed)
        queries = self._pointwise.norm(down, weights.query_norm)
        key = compression.key(key, weights.key_norm, step)
        if weights.entry_offset is not None and weights.entry_norm is not None:
            own = weights.entry_offset, weights.entry_norm
            compression.keep_entries(EntryTokens(columns[0], columns[1], *own), cache.states[1], cache.entries, step)
        chosen = None
        if weights.indexer is not None:
            chosen = self._choose(weights.indexer, normed, queries, columns[2], cache, step)
        del down, columns
        query = compression.queries(weights.query_up(queries).view(len(normed), mixer.num_heads, -1), step)
        attended = compression.attend(query, key, cache, chosen, weights.sinks, step)
        compression.keep_window(key, cache.window, step)
        del query, key, queries, chosen
        groups = weights.output_down(attended.view(len(normed), mixer.output_groups, -1))
        return weights.output_up(groups.flatten(1))

    def long(
        self, weights: CompressedWeights, normed: torch.Tensor, cache: CompressedCache, step: Step, out: torch.Tensor
    ) -> None:
        """Never called: `SPARSE_SLICE_SIZES` has no long slices."""
        raise AssertionError("a long slice of attention to compressed entries")

    def _choose(
        self,
        weights: EntryIndexWeights,
        normed: torch.Tensor,
        queries: torch.Tensor,
        values: torch.Tensor,
        cache: CompressedCache,
        step: Step,
    ) -> torch.Tensor:
        """Write the index keys of the entries that the step completes, and select entries. queries [T, q_lora_rank],
        values [T, 2 key_dim]."""
        index = self._mixer.index
        assert index is not None
        assert cache.index_keys is not None
        tokens = EntryTokens(values, weights.gate(normed), weights.offset, weights.norm)
        self._compression.keep_entries(tokens, cache.states[2], cache.index_keys, step)
        query = weights.query_up(queries).view(len(normed), index.num_heads, index.key_dim)
        return self._compression.choose(query, weights.head_weights(normed), cache.index_keys, step)
