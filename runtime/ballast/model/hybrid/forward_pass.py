"""The layers of a model, from embedded tokens to logits. Each layer runs on its device.

The same transformer as csrc/model/transformer.cpp, on torch tensors. Shapes: T tokens, D hidden. All activations are
float32. The stream crosses to the next device once, behind the last layer of a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ballast.model.hybrid.devices.device import Device
from ballast.model.hybrid.experts.divided_experts import DividedExperts
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.steps.pieces import Pieces, within
from ballast.model.hybrid.steps.slices import PRODUCT_TOKENS, even_bounds
from ballast.model.hybrid.steps.step import Step
from ballast.model.hybrid.weights import HybridWeights, LayerWeights, MlpWeights
from ballast.model.layer_ranges import check_ranges
from ballast.model.spec import ModelSpec


class ForwardPass:
    """Computes steps."""

    def __init__(self, spec: ModelSpec, weights: HybridWeights, devices: Sequence[Device]) -> None:
        """Each layer must be in the range of exactly one of `devices`. Raises ValueError otherwise, and if a range
        begins with a layer that uses the positions selected by the layer below."""
        check_ranges(spec, [device.layers for device in devices])
        self.weights = weights
        self._devices = devices
        self._routed_index = {layer: index for index, layer in enumerate(spec.routed_layers)}
        norms = [*(layer.attention.norm for layer in weights.layers[1:]), weights.output_norm]
        self._next_norms: list[torch.Tensor | None] = list(norms)
        """By layer, the norm of the layer that follows on the same device; None if another device follows."""
        for device in devices[:-1]:
            self._next_norms[device.layers[-1]] = None

    def pieces(
        self,
        stream: torch.Tensor,
        steps: Sequence[Step],
        experts: DividedExperts,
        *,
        is_prefill: bool,
        layers: Sequence[int] | None = None,
    ) -> Pieces[torch.Tensor]:
        """Compute the logits [sampled, vocabulary] of embedded tokens [T, D] on the first device, which are
        overwritten. `steps`: the step on each device, prepared by `attention_for(is_prefill=is_prefill)`. `layers`:
        ascending indices of the layers to compute; None: all."""
        for number, (device, step) in enumerate(zip(self._devices, steps, strict=True)):
            if number > 0:
                with device.active():
                    stream = stream.to(device.torch_device, non_blocking=True)
            part = self.part(number, stream, step, experts, is_prefill=is_prefill, layers=layers)
            stream = yield from within(device.active, part)
        return stream

    def part(
        self,
        number: int,
        stream: torch.Tensor,
        step: Step,
        experts: DividedExperts,
        *,
        is_prefill: bool,
        layers: Sequence[int] | None = None,
    ) -> Pieces[torch.Tensor]:
        """Compute the layers of the device with this number, while it is active. Returns the stream [T, D], which is
        overwritten, or the logits [sampled, vocabulary] if it is the last device."""
        weights, device = self.weights.layers, self._devices[number]
        attention = device.attention_for(is_prefill=is_prefill)
        normed = device.pointwise.norm(stream, weights[device.layers[0]].attention.norm)
        for index in device.layers:
            if layers is not None and index not in layers:
                continue
            layer, next_norm = weights[index], self._next_norms[index]
            # Temporaries as long as the stream have no names, so that they are freed as soon as they are added.
            normed = device.pointwise.add_and_norm(
                stream,
                ((yield from attention.pieces(index, layer.attention, normed, device.cache(index), step)),),
                layer.ffn_norm,
            )
            if next_norm is None:
                for term in (yield from self._feed_forward(layer, index, normed, experts, device.pointwise)):
                    stream += term
            else:
                normed = device.pointwise.add_and_norm(
                    stream,
                    (yield from self._feed_forward(layer, index, normed, experts, device.pointwise)),
                    next_norm,
                )
        is_last = number == len(self._devices) - 1
        return self.weights.output(normed[step.sampled]) if is_last else stream

    def _feed_forward(
        self,
        layer: LayerWeights,
        index: int,
        normed: torch.Tensor,
        experts: DividedExperts,
        pointwise: Pointwise,
    ) -> Pieces[tuple[torch.Tensor, ...]]:
        """The summands of the feed-forward, each [T, D]. Experts are started first: the CPU computes them while the
        device computes the parts that every token needs."""
        if layer.routed is None:
            assert layer.mlp is not None
            return (_mlp(layer.mlp, normed, pointwise),)
        routed_index = self._routed_index[index]
        yield from experts.pieces(routed_index, normed, *layer.routed.choose(layer.routed.router(normed)))
        every_token = () if layer.mlp is None else (_mlp(layer.mlp, normed, pointwise),)
        return (experts.result(routed_index), *every_token)


def _mlp(weights: MlpWeights, x: torch.Tensor, pointwise: Pointwise) -> torch.Tensor:
    if len(x) <= PRODUCT_TOKENS:
        out = weights.down(pointwise.gated(*weights.gate_and_up(x), unit=weights.unit))
        return out if weights.share is None else pointwise.gate_rows(out, x, weights.share)
    out = torch.empty_like(x)
    for begin, end in even_bounds(0, len(x), PRODUCT_TOKENS):
        out[begin:end] = _mlp(weights, x[begin:end], pointwise)
    return out
