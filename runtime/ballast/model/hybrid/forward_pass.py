"""The layers of a model, from embedded tokens to logits. Each layer runs on its device.

The same transformer as csrc/model/transformer.cpp, on torch tensors. Shapes: T tokens, D hidden. All activations are
float32. The stream crosses to the next device once, behind the last layer of a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.devices.device import Device
from ballast.model.hybrid.experts.divided_experts import DividedExperts
from ballast.model.hybrid.pointwise.pointwise import Pointwise
from ballast.model.hybrid.residual.residual import Stream
from ballast.model.hybrid.steps.overlap import StepPart, parts_of
from ballast.model.hybrid.steps.pieces import Pieces, interleaved, within
from ballast.model.hybrid.steps.slices import PRODUCT_TOKENS, even_bounds, overlap_tokens
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
        self._part_tokens = overlap_tokens(spec.routing)

    def pieces(
        self,
        rows: torch.Tensor,
        steps: Sequence[Step],
        experts: DividedExperts,
        *,
        is_prefill: bool,
        sampled: NDArray[np.int64],
    ) -> Pieces[torch.Tensor]:
        """Compute the logits [sampled, vocabulary] of embedded tokens [T, D] on the first device, which are
        overwritten. `steps`: the step on each device, prepared by `attention_for(is_prefill=is_prefill)`. `sampled`
        [S]: see `parts_of`. In prompts, devices that hold all experts compute different parts at the same time."""
        if is_prefill and len(self._devices) > 1 and not experts.has_host:
            return (yield from self._overlapping(rows, steps, experts, sampled))
        for number, step in enumerate(steps):
            rows = yield from self._on_device(number, rows, step, experts, is_prefill=is_prefill)
        return rows

    def _overlapping(
        self, rows: torch.Tensor, steps: Sequence[Step], experts: DividedExperts, sampled: NDArray[np.int64]
    ) -> Pieces[torch.Tensor]:
        """As `pieces`: devices compute different parts of the step at the same time."""
        parts: list[list[StepPart]] = []
        for device, step in zip(self._devices, steps, strict=True):
            with device.active():
                parts.append(parts_of(step, sampled, self._part_tokens))
        results = [rows[part.begin : part.end] for part in parts[0]]
        """By part: its rows for the next device, and after the last one its logits."""
        for stage in range(len(results) + len(steps) - 1):
            running = {}
            for number, own in enumerate(parts):
                part = stage - number
                if 0 <= part < len(results):
                    given = number, results[part], own[part].step, experts
                    running[part] = self._on_device(*given, is_prefill=True)
            for part, result in (yield from interleaved(running)).items():
                results[part] = result
        with self._devices[-1].active():
            return torch.cat(results)

    def _on_device(
        self,
        number: int,
        rows: torch.Tensor,
        step: Step,
        experts: DividedExperts,
        *,
        is_prefill: bool,
    ) -> Pieces[torch.Tensor]:
        """`part`, while the device is active, for rows of the device before it."""
        device = self._devices[number]
        if number > 0:
            with device.active():
                rows = rows.to(device.torch_device, non_blocking=True)
        part = self.part(number, rows, step, experts, is_prefill=is_prefill)
        return (yield from within(device.active, part))

    def part(
        self,
        number: int,
        rows: torch.Tensor,
        step: Step,
        experts: DividedExperts,
        *,
        is_prefill: bool,
        layers: Sequence[int] | None = None,
    ) -> Pieces[torch.Tensor]:
        """Compute the layers of the device with this number, while it is active. `rows`: the embedded tokens [T, D] on
        the first device, elsewhere the rows of the stream, which are overwritten. Returns these rows, or the logits
        [sampled, vocabulary] if it is the last device."""
        weights, device = self.weights.layers, self._devices[number]
        attention, residual = device.attention_for(is_prefill=is_prefill), device.residual
        stream = Stream(residual.begin(rows) if number == 0 else rows)
        del rows
        parts: tuple[torch.Tensor, ...] = ()
        # Temporaries as long as the stream are freed as soon as they are added.
        for index in device.layers:
            if layers is not None and index not in layers:
                continue
            layer = weights[index]
            if layer.ngrams is not None:
                residual.add(stream, parts)
                parts = ()
                yield from device.embed_ngrams.pieces(layer.ngrams, stream.rows, device.ngram_inputs(index), step)
            normed = residual.next_block(stream, parts, layer.inputs[0])
            parts = ()
            normed = residual.next_block(
                stream,
                ((yield from attention.pieces(index, layer.attention, normed, device.cache(index), step)),),
                layer.inputs[1],
            )
            parts = yield from self._feed_forward(layer, index, normed, step, experts, device.pointwise)
        if number < len(self._devices) - 1:
            residual.add(stream, parts)
            return stream.rows
        if len(step.sampled) == len(stream.rows):  # as in decode steps, where copies of all rows would only cost time
            return self.weights.output(residual.finish(stream, parts, self.weights.end)[step.sampled])
        stream, parts = stream.of(step.sampled), tuple(part[step.sampled] for part in parts)
        return self.weights.output(residual.finish(stream, parts, self.weights.end))

    def _feed_forward(
        self,
        layer: LayerWeights,
        index: int,
        normed: torch.Tensor,
        step: Step,
        experts: DividedExperts,
        pointwise: Pointwise,
    ) -> Pieces[tuple[torch.Tensor, ...]]:
        """The summands of the feed-forward, each [T, D]. Experts are started first: the CPU computes them while the
        device computes the parts that every token needs."""
        if layer.routed is None:
            assert layer.mlp is not None
            return (_mlp(layer.mlp, normed, pointwise),)
        routed_index = self._routed_index[index]
        chosen = layer.routed.choose(layer.routed.router(normed), step.token_ids)
        yield from experts.pieces(routed_index, normed, *chosen)
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
