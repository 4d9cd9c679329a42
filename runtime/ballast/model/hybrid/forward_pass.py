"""The layers of a model, from embedded tokens to logits. Each layer runs on its device.

The same transformer as csrc/model/transformer.cpp, on torch tensors. Shapes: T tokens, D hidden. All activations are
float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ballast.model.hybrid.device import Device
from ballast.model.hybrid.experts.divided_experts import DividedExperts
from ballast.model.hybrid.pieces import Pieces
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.slices import PRODUCT_TOKENS, even_bounds
from ballast.model.hybrid.step import Step
from ballast.model.hybrid.weights import HybridWeights, LayerWeights, MlpWeights
from ballast.model.spec import ModelSpec


class ForwardPass:
    """Computes steps. A step's tables and its queued work belong to one device; nothing copies them to another device
    yet."""

    def __init__(self, spec: ModelSpec, weights: HybridWeights, devices: Sequence[Device]) -> None:
        """Each layer must be in the range of exactly one of `devices`. Raises ValueError otherwise."""
        layers = [layer for device in devices for layer in device.layers]
        if layers != list(range(spec.num_layers)):
            raise ValueError(f"devices have layers {layers}; expected each of {spec.num_layers} once, in order")
        self.weights = weights
        self.device_of = [device for device in devices for _ in device.layers]
        """The device of each layer, by layer index."""
        self._routed_index = {layer: index for index, layer in enumerate(spec.routed_layers)}

    def pieces(
        self,
        stream: torch.Tensor,
        step: Step,
        experts: DividedExperts,
        *,
        is_prefill: bool,
        layers: Sequence[int] | None = None,
    ) -> Pieces[torch.Tensor]:
        """Compute the logits [sampled, vocabulary] of embedded tokens [T, D], which are overwritten. `step` was
        prepared by `attention_for(is_prefill=is_prefill)`. `layers`: ascending indices of the layers to compute; None:
        all."""
        weights = self.weights.layers
        norms = [*(layer.attention.norm for layer in weights[1:]), self.weights.output_norm]
        normed = self.device_of[0].pointwise.norm(stream, weights[0].attention.norm)
        for index in range(len(weights)) if layers is None else layers:
            layer, device, next_norm = weights[index], self.device_of[index], norms[index]
            attention = device.attention_for(is_prefill=is_prefill)
            # Temporaries as long as the stream have no names, so that they are freed as soon as they are added.
            normed = device.pointwise.add_and_norm(
                stream,
                ((yield from attention.pieces(index, layer.attention, normed, device.cache(index), step)),),
                layer.ffn_norm,
            )
            normed = device.pointwise.add_and_norm(
                stream, (yield from self._feed_forward(layer, index, normed, experts)), next_norm
            )
        return self.weights.output(normed[step.sampled])

    def _feed_forward(
        self, layer: LayerWeights, index: int, normed: torch.Tensor, experts: DividedExperts
    ) -> Pieces[tuple[torch.Tensor, ...]]:
        """The summands of the feed-forward, each [T, D]. Experts are started first: the CPU computes them while the
        device computes the parts that every token needs."""
        pointwise = self.device_of[index].pointwise
        if layer.routed is None:
            assert layer.mlp is not None
            return (_mlp(layer.mlp, normed, pointwise),)
        routed_index = self._routed_index[index]
        yield from experts.pieces(routed_index, normed, *layer.routed.choose(layer.routed.router(normed)))
        every_token = () if layer.mlp is None else (_mlp(layer.mlp, normed, pointwise),)
        return (experts.result(routed_index), *every_token)


def _mlp(weights: MlpWeights, x: torch.Tensor, pointwise: Pointwise) -> torch.Tensor:
    if len(x) <= PRODUCT_TOKENS:
        return weights.down(pointwise.gated(*weights.gate_and_up(x), unit=weights.unit))
    out = torch.empty_like(x)
    for begin, end in even_bounds(0, len(x), PRODUCT_TOKENS):
        out[begin:end] = _mlp(weights, x[begin:end], pointwise)
    return out
