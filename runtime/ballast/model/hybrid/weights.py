"""The weights of a hybrid model: on the device what every token needs, in host memory the routed experts.

Matrices are packed on the host in their type in the file, and copied to the device one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.hybrid.attention.cache_bounds import largest_normed, largest_product, largest_rotated
from ballast.model.hybrid.experts.routing import Choose, Router
from ballast.model.hybrid.linear import (
    FloatLinear,
    Linear,
    Linears,
    MakeLinear,
    as_one,
    one_after_the_other,
    one_by_one,
)
from ballast.model.hybrid.pointwise.pointwise import HeadWeights, IndexNorm
from ballast.model.spec import GroupedSpec, ModelSpec
from ballast.model.weights import HeadMatrix, Packing, Tensors, read_ahead, shares_after_layers
from ballast.weights.gguf import GgufModel

IsTaken = Callable[[int, kernels.Experts], bool]
"""Asked with a routed layer's index, from 0, and its packed experts: whether the device has taken all of them."""


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """What chooses the positions that a layer's attention sees, of H index heads; its key is `LatentWeights.down`'s."""

    query_up: Linear  # q_lora_rank → H * key_dim
    norm: IndexNorm
    head_weights: Linear  # D → H, in float32 throughout: rounding would change what is chosen


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Latent attention. Queries are projected through a low rank (V2, V3) or directly (V2-Lite)."""

    norm: torch.Tensor  # [D]
    down: Linears  # D → q_lora_rank, or H * (nope + rope) where there is no rank; kv_lora_rank + rope;
    # of an indexer, key_dim
    query_norm: torch.Tensor | None  # [q_lora_rank]
    query_up: Linear | None  # q_lora_rank → H * (nope + rope)
    kv_a_norm: torch.Tensor  # [kv_lora_rank]
    k_up: Linear  # per head nope → kv_lora_rank
    v_up: Linear  # per head kv_lora_rank → v
    output: Linear  # H * v → D
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """Grouped-query attention over G heads of keys of width K and values of width V."""

    norm: torch.Tensor  # [D]
    heads: Linears  # D → H * K; G * K; G * V
    of_heads: HeadWeights
    output: Linear  # H * V → D


AttentionWeights = LatentWeights | GroupedWeights


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """The feed-forward network that every token passes: a dense layer's, or the shared experts."""

    gate_and_up: Linears  # D → N, N
    down: Linear  # N → D


@dataclass(frozen=True, slots=True)
class RoutedWeights:
    """The router on the device, and the experts in host memory; None where the device has all of them."""

    router: Linear  # D → E
    choose: Choose
    experts: kernels.Experts | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer."""

    attention: AttentionWeights
    ffn_norm: torch.Tensor  # [D]
    mlp: MlpWeights | None
    routed: RoutedWeights | None


@dataclass(frozen=True, slots=True)
class HybridWeights:
    """All weights of a model. The embedding is read from the mapped file, a few rows a step."""

    embedding: kernels.Matrix  # [vocabulary, D]
    layers: tuple[LayerWeights, ...]
    output_norm: torch.Tensor  # [D]
    output: Linear  # D → sampled vocabulary
    num_sampled_ids: int
    largest: Mapping[str, float]
    """By what the cache keeps, "key", "latent", "value" or "index key": the largest number that it can have there,
    whatever the tokens; see `cache_bounds`."""


def load_hybrid_weights(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    make_linear: MakeLinear,
    device: torch.device,
    report: Callable[[float], None],
    is_taken: IsTaken = lambda *_: False,
) -> HybridWeights:
    """Load every tensor of a checked file; `report` gets the share of bytes done, 0…1, after each layer. A layer's
    experts are not kept where `is_taken` says that the device has them."""
    with read_ahead(gguf_model, spec, packing) as ahead:
        loader = _Loader(Tensors(gguf_model, packing, ahead), spec, make_linear, device, is_taken)
        layers = []
        for index, share in enumerate(shares_after_layers(gguf_model, spec.num_layers)):
            layers.append(loader.layer(index))
            report(share)
        num_rows = min(num_sampled_ids, spec.vocab_size)
        output = "token_embd.weight" if spec.tied_output else "output.weight"
        return HybridWeights(
            embedding=loader.tensors.view("token_embd.weight"),
            layers=tuple(layers),
            output_norm=loader.vector("output_norm.weight"),
            output=loader.matrix(output, num_rows),
            num_sampled_ids=num_rows,
            largest=loader.largest,
        )


class _Loader:
    def __init__(
        self, tensors: Tensors, spec: ModelSpec, make_linear: MakeLinear, device: torch.device, is_taken: IsTaken
    ) -> None:
        self.tensors = tensors
        self._spec = spec
        self._make_linear = make_linear
        self._device = device
        self._is_taken = is_taken
        self.largest: dict[str, float] = {}

    def vector(self, name: str) -> torch.Tensor:
        return torch.tensor(self.tensors.vector(name), device=self._device)

    def matrix(self, name: str, num_rows: int | None = None) -> Linear:
        packed = self.tensors.matrix(name, num_rows)
        return self._make_linear(packed, packed.rows, packed.cols)

    def matrices(self, *names: str) -> Linears:
        """Matrices that are applied to one input, neighbours as one product where their types allow it: published files
        often have values in a better type than queries and keys."""
        runs: list[list[str]] = []
        for name in names:
            if runs and self.tensors.are_stackable((runs[-1][0], name)):
                runs[-1].append(name)
            else:
                runs.append([name])
        return one_after_the_other([self._run(run) for run in runs])

    def _run(self, names: Sequence[str]) -> Linears:
        """Matrices of one type and width."""
        if len(names) == 1:
            return one_by_one([self.matrix(names[0])])
        whole = self.tensors.stacked(names)
        linear = self._make_linear(whole, whole.rows, whole.cols)
        return as_one(linear, [self.tensors.view(name).rows for name in names])

    def layer(self, index: int) -> LayerWeights:
        block = f"blk.{index}"
        is_dense = index < self._spec.num_dense_layers
        has_shared = not is_dense and self._spec.num_shared_experts > 0
        return LayerWeights(
            attention=self._grouped(block)
            if isinstance(self._spec.attention, GroupedSpec)
            else self._latent(block, index),
            ffn_norm=self.vector(f"{block}.{self._spec.architecture.ffn_norm}.weight"),
            mlp=self._mlp(block, "_shexp" if has_shared else "") if is_dense or has_shared else None,
            routed=None if is_dense else self._routed(index - self._spec.num_dense_layers, block),
        )

    def optional_vector(self, name: str) -> torch.Tensor | None:
        return self.vector(name) if name in self.tensors else None

    def _grouped(self, block: str) -> GroupedWeights:
        self._note_heads(block)
        return GroupedWeights(
            norm=self.vector(f"{block}.attn_norm.weight"),
            heads=self.matrices(*(f"{block}.attn_{part}.weight" for part in "qkv")),
            of_heads=HeadWeights(
                *(self.optional_vector(f"{block}.attn_{part}.bias") for part in "qkv"),
                *(self.optional_vector(f"{block}.attn_{part}_norm.weight") for part in "qk"),
            ),
            output=self.matrix(f"{block}.attn_output.weight"),
        )

    def _latent(self, block: str, index: int) -> LatentWeights:
        spec = self._spec
        has_indexer = spec.index is not None and spec.index.layers[index]
        has_rank = spec.latent.q_lora_rank is not None
        self._note_latents(block)
        k_up, v_up = self.tensors.latent_heads(spec, block)
        return LatentWeights(
            norm=self.vector(f"{block}.attn_norm.weight"),
            down=self.matrices(
                f"{block}.attn_q_a.weight" if has_rank else f"{block}.attn_q.weight",
                f"{block}.attn_kv_a_mqa.weight",
                *([f"{block}.indexer.attn_k.weight"] if has_indexer else []),
            ),
            query_norm=self.vector(f"{block}.attn_q_a_norm.weight") if has_rank else None,
            query_up=self.matrix(f"{block}.attn_q_b.weight") if has_rank else None,
            kv_a_norm=self.vector(f"{block}.attn_kv_a_norm.weight"),
            k_up=self._heads(k_up, spec.latent.kv_lora_rank, spec.latent.nope_dim),
            v_up=self._heads(v_up, spec.latent.v_dim, spec.latent.kv_lora_rank),
            output=self.matrix(f"{block}.attn_output.weight"),
            indexer=self._indexer(f"{block}.indexer") if has_indexer else None,
        )

    def _indexer(self, prefix: str) -> IndexerWeights:
        assert self._spec.index is not None
        for part in ("k_norm.weight", "k_norm.bias", "proj.weight"):
            self.tensors.check_finite(f"{prefix}.{part}")
        weight, shift = f"{prefix}.k_norm.weight", f"{prefix}.k_norm.bias"
        length = float(np.linalg.norm(self.tensors.vector(shift)))
        self._note("index key", self._rotation * (largest_normed(self.tensors.vector(weight)) + length))
        proj = self.tensors.matrix(f"{prefix}.proj.weight")
        head_weights = torch.from_numpy(kernels.unpack(proj))
        if proj.scales.size:
            head_weights *= float(proj.scales[0])
        return IndexerWeights(
            query_up=self.matrix(f"{prefix}.attn_q_b.weight"),
            norm=IndexNorm(self.vector(weight), self.vector(shift), self._spec.index.pairs_apart),
            head_weights=FloatLinear(head_weights.to(self._device)),
        )

    def _note_latents(self, block: str) -> None:
        """How large the layer's part of the cache can become."""
        latent = self._spec.latent
        keys = self._largest_products(block, "attn_kv_a_mqa", range(latent.kv_lora_rank, latent.latent_dim))
        self._note("key", largest_rotated(keys[0::2], keys[1::2], self._rotation))
        self._note("latent", largest_normed(self.tensors.vector(f"{block}.attn_kv_a_norm.weight")))

    def _note_heads(self, block: str) -> None:
        """The same of grouped-query attention."""
        norm = f"{block}.attn_k_norm.weight"
        if norm in self.tensors:
            self._note("key", self._rotation * largest_normed(self.tensors.vector(norm)))
        else:
            grouped = self._spec.attention
            assert isinstance(grouped, GroupedSpec)
            keys = self._largest_products(block, "attn_k").reshape(grouped.num_kv_heads, grouped.head_dim)
            first, second, rest = np.split(keys, (grouped.rope_dim // 2, grouped.rope_dim), 1)
            self._note("key", max(largest_rotated(first, second, self._rotation), float(rest.max(initial=0.0))))
        self._note("value", float(self._largest_products(block, "attn_v").max()))

    @property
    def _rotation(self) -> float:
        return self._spec.yarn.attention_factor if self._spec.yarn else 1.0

    def _largest_products(self, block: str, part: str, rows: range | None = None) -> NDArray[np.float64]:
        """Of some rows of a matrix that the layer's norm precedes; None: of all."""
        matrix = self.tensors.view(f"{block}.{part}.weight")
        ids = np.array(range(matrix.rows) if rows is None else rows, np.int32)
        values = np.empty((len(ids), matrix.cols), np.float32)
        kernels.embed(matrix, ids, values)
        if matrix.scales.size:
            values *= matrix.scales
        bias = self.tensors.optional_vector(f"{block}.{part}.bias")
        return largest_product(self.tensors.vector(f"{block}.attn_norm.weight"), values, bias)

    def _note(self, name: str, largest: float) -> None:
        # A sum that is no number stays one.
        self.largest[name] = float(np.maximum(self.largest.get(name, 0.0), largest))

    def _heads(self, heads: HeadMatrix, rows: int, cols: int) -> Linear:
        return self._make_linear(heads.matrix, rows, cols, is_transposed=heads.transposed)

    def _mlp(self, block: str, suffix: str) -> MlpWeights:
        gate, up, down = (f"{block}.ffn_{part}{suffix}.weight" for part in ("gate", "up", "down"))
        return MlpWeights(self.matrices(gate, up), self.matrix(down))

    def _routed(self, index: int, block: str) -> RoutedWeights:
        weights = self.tensors.routed(self._spec, block)
        router = torch.from_numpy(kernels.unpack(weights.router)).to(self._device)
        bias = None if weights.bias is None else torch.tensor(weights.bias, device=self._device)
        experts = None if self._is_taken(index, weights.experts) else weights.experts
        return RoutedWeights(FloatLinear(router), self._router(bias), experts)

    def _router(self, bias: torch.Tensor | None) -> Choose:
        if self._device.type != "cuda":
            return Router(self._spec, bias)
        from ballast.model.hybrid.experts.fused_routing import FusedRouter  # here alone: a CPU needs no Triton

        return FusedRouter(self._spec, bias)
