"""The weights of a hybrid model: the weights that every token needs are on the device of their layer, the routed
experts in host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.families.architecture import Unit
from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.experts.routing import Choose, MakeRouter
from ballast.model.hybrid.layers.compressed_attention import CompressedWeights
from ballast.model.hybrid.layers.delta_net import DeltaNetWeights
from ballast.model.hybrid.layers.grouped_attention import GroupedWeights
from ballast.model.hybrid.layers.kimi_delta import KimiDeltaWeights
from ballast.model.hybrid.layers.largest_kept import largest_kept
from ballast.model.hybrid.layers.latent_attention import LatentWeights
from ballast.model.hybrid.layers.ngram_embedding import NgramWeights
from ballast.model.hybrid.layers.ngram_rows import NgramRows
from ballast.model.hybrid.linear import Linear, Linears, MakeLinear
from ballast.model.hybrid.residual.residual import BlockInput
from ballast.model.layers.compressed import CompressedSpec
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.feed_forward import EXPERT_TABLE, EXPERTS, MLP_GATE, RoutingSpec
from ballast.model.layers.grouped import GroupedSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.latent import LatentSpec
from ballast.model.layers.layer import Mixer, RecurrentMixer
from ballast.model.packed_tensors import LayerTensors, Packing, Tensors
from ballast.model.spec import ModelSpec
from ballast.model.tensors import EMBEDDING, NGRAM_TABLE, OUTPUT, layer_tensors, output_tensors
from ballast.model.weights import read_ahead, read_rope_factors, shares_after_layers
from ballast.weights.gguf import GgufModel

IsTaken = Callable[[int, kernels.Experts], bool]
"""Called with a routed layer's index, from 0, and its packed experts; returns whether the device has taken all of
them."""


MixerWeights = LatentWeights | GroupedWeights | CompressedWeights | DeltaNetWeights | KimiDeltaWeights


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """The feed-forward network for every token: a dense layer's, or the shared experts."""

    gate_and_up: Linears  # D → N, N
    down: Linear  # N → D
    unit: Unit | None = None
    """What it computes of gate and up. None: silu(g) · u."""
    share: torch.Tensor | None = None  # [D]
    """The sigmoid of its product with a token's input multiplies the output. None: 1."""


@dataclass(frozen=True, slots=True)
class RoutedWeights:
    """The router on the layer's device, and the experts in host memory; None if the device has all of them."""

    router: Linear  # D → E
    choose: Choose
    experts: kernels.Experts | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer."""

    attention: MixerWeights
    inputs: tuple[BlockInput, BlockInput]
    """How attention and feed-forward read the stream."""
    ngrams: NgramWeights | None
    """The n-gram embedding that the layer adds to the stream before attention."""
    mlp: MlpWeights | None
    routed: RoutedWeights | None


@dataclass(frozen=True, slots=True)
class HybridWeights:
    """All weights of a model. The embedding is read from the mapped file, a few rows per step."""

    embedding: kernels.Matrix  # [vocabulary, D]
    layers: tuple[LayerWeights, ...]
    end: BlockInput
    """How the output reads the stream."""
    output: Linear  # D → sampled vocabulary
    num_sampled_ids: int
    largest: Mapping[str, float]
    """The largest number that the cache can receive, for any tokens, by kind of entry: "key", "latent", "value" or
    "index key"; see `cache_bounds`."""
    rope_factors: NDArray[np.float32] | None = None
    """The divisors of the frequencies of rotations with factors, per pair."""
    ngram_table: kernels.Matrix | None = None
    """The n-gram table, which is read from the mapped file, like the embedding."""

    def ngram_rows(self, spec: ModelSpec) -> NgramRows | None:
        """The reader of this table; None without one."""
        if spec.ngram is None or self.ngram_table is None:
            return None
        layer = next(index for index, layer in enumerate(spec.layers) if layer.ngram is not None)
        return NgramRows(spec.ngram, layer, self.ngram_table)


@dataclass(frozen=True, slots=True)
class DeviceLoader:
    """Makes the weights of a device's layers, while it is active."""

    device: torch.device
    make_linear: MakeLinear
    make_router: MakeRouter
    is_taken: IsTaken
    active: Callable[[], AbstractContextManager[object]]


def load_hybrid_weights(
    gguf_model: GgufModel,
    spec: ModelSpec,
    num_sampled_ids: int,
    packing: Packing,
    loaders: Sequence[DeviceLoader],
    report: Callable[[float], None],
) -> HybridWeights:
    """Load every tensor of a checked file. `loaders`: one per layer; the last one also gets the output. `report`
    gets the fraction of bytes done, 0…1, after each layer. A layer's experts are not kept if `is_taken` returns that
    the device has them."""
    with read_ahead(gguf_model, spec, packing) as ahead:
        tensors = Tensors(gguf_model, packing, ahead)
        loader = _Loader(tensors, spec)
        layers = []
        for index, share in enumerate(shares_after_layers(gguf_model, spec.num_layers)):
            with loaders[index].active():
                layers.append(loader.layer(index, loaders[index]))
            report(share)
        output = tensors.matrix(EMBEDDING if spec.tied_output else OUTPUT, min(num_sampled_ids, spec.vocab_size))
        last = loaders[-1]
        ends = LayerTensors(tensors, output_tensors(spec))
        if spec.ngram is not None:
            gguf_model.expect_single_rows(NGRAM_TABLE)
        with last.active():
            return HybridWeights(
                embedding=tensors.view(EMBEDDING),
                layers=tuple(layers),
                end=BlockInput.load(DeviceTensors(ends, last.make_linear, last.device), spec.stream, "output"),
                output=last.make_linear(output, output.rows, output.cols),
                num_sampled_ids=output.rows,
                largest=loader.largest,
                rope_factors=read_rope_factors(gguf_model, spec, tensors),
                ngram_table=None if spec.ngram is None else tensors.view(NGRAM_TABLE),
            )


class _Loader:
    def __init__(self, tensors: Tensors, spec: ModelSpec) -> None:
        self._tensors = tensors
        self._spec = spec
        self._routed_index = {layer: index for index, layer in enumerate(spec.routed_layers)}
        self.largest: dict[str, float] = {}

    def layer(self, index: int, on: DeviceLoader) -> LayerWeights:
        spec = self._spec.layers[index]
        mixer, experts = spec.mixer, spec.experts
        unit = spec.feed_forward.unit if experts is None else experts.shared_unit
        host = LayerTensors(self._tensors, layer_tensors(self._spec, index))
        tensors = DeviceTensors(host, on.make_linear, on.device)
        if not isinstance(mixer, RecurrentMixer):
            for name, largest in largest_kept(host, mixer).items():
                # A NaN bound stays NaN.
                self.largest[name] = float(np.maximum(self.largest.get(name, 0.0), largest))
        return LayerWeights(
            attention=_mixer_weights(tensors, mixer),
            inputs=(BlockInput.load(tensors, spec.stream, "attention"), BlockInput.load(tensors, spec.stream, "ffn")),
            ngrams=None if spec.ngram is None else NgramWeights.load(tensors, spec.ngram),
            mlp=MlpWeights(
                tensors.linears("gate", "up"), tensors.linear("down"), unit, tensors.optional_vector(MLP_GATE)
            )
            if "down" in host
            else None,
            routed=None if experts is None else self._routed(index, tensors, experts.routing, on),
        )

    def _routed(self, index: int, tensors: DeviceTensors, rule: RoutingSpec, on: DeviceLoader) -> RoutedWeights:
        router, bias = tensors.float_linear("router", "router_logit_bias"), tensors.optional_vector("router_bias")
        packed = tensors.host.experts(EXPERTS)
        is_taken = on.is_taken(self._routed_index[index], packed)
        table = tensors.optional_vector(EXPERT_TABLE)
        of_ids = None if table is None else table.to(torch.int32).view(-1, rule.num_experts_used)
        return RoutedWeights(router, on.make_router(rule, bias, of_ids), None if is_taken else packed)


def _mixer_weights(tensors: DeviceTensors, mixer: Mixer) -> MixerWeights:
    if isinstance(mixer, KimiDeltaSpec):
        return KimiDeltaWeights.load(tensors, mixer)
    if isinstance(mixer, DeltaNetSpec):
        return DeltaNetWeights.load(tensors, mixer)
    if isinstance(mixer, GroupedSpec):
        return GroupedWeights.load(tensors, mixer)
    if isinstance(mixer, CompressedSpec):
        return CompressedWeights.load(tensors, mixer)
    assert isinstance(mixer, LatentSpec), "the plan rejects other kinds"
    return LatentWeights.load(tensors, mixer)
