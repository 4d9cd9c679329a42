"""Gated DeltaNet of a slice. Shapes: T tokens, H heads of values, C channels of the convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.linear import Linear, Linears
from ballast.model.hybrid.recurrent.recurrence import Gates, Recurrence
from ballast.model.hybrid.recurrent.state_pool import LayerStates
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.delta_net import DeltaNetSpec, MatrixLayout


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """A layer's weights for values of width V."""

    inputs: Linears  # D → C; H * V: queries, keys and values, and the gates of the output; or both in one, by key head
    gates: Linears  # D → H; H: betas and alphas; or both in one, by key head
    conv: torch.Tensor  # [taps, C]
    rate: torch.Tensor  # [H], below 0
    rate_shift: torch.Tensor  # [H]
    head_norm: torch.Tensor  # [V]
    output: Linear  # H * V → D

    @staticmethod
    def load(tensors: DeviceTensors, mixer: DeltaNetSpec) -> DeltaNetWeights:
        return DeltaNetWeights(
            inputs=_linears(tensors, mixer.product_layout, ("mixed", "output_gate"), "products", "grouped"),
            gates=_linears(tensors, mixer.beta_layout, ("beta", "alpha"), "betas_alphas", "beta_alpha"),
            conv=tensors.vector("conv").view(mixer.channels, mixer.conv_taps).T.contiguous(),
            rate=tensors.vector("rate"),
            rate_shift=tensors.vector("rate_shift"),
            head_norm=tensors.vector("head_norm"),
            output=tensors.linear("output"),
        )


def _linears(
    tensors: DeviceTensors, layout: MatrixLayout, split: tuple[str, str], merged: str, grouped: str
) -> Linears:
    """Two matrices, or one that is grouped by key head; by the roles of the tensors that each layout has."""
    if layout == "merged":
        return tensors.sliced_linears(merged)
    return tensors.linears(*(split if layout == "split" else (grouped,)))


class DeltaNetLayer:
    """The recurrent `LayerKind` of layers with one mixer."""

    attend = None
    has_window = False

    def __init__(self, mixer: DeltaNetSpec, recurrence: Recurrence) -> None:
        self._mixer = mixer
        self._recurrence = recurrence

    def __call__(self, weights: DeltaNetWeights, normed: torch.Tensor, cache: LayerStates, step: Step) -> torch.Tensor:
        """See `LayerKind`."""
        assert step.states is not None, "steps of models with recurrent layers have states"
        mixed, output_gates = self._apart(weights.inputs(normed))
        convolved = self._recurrence.convolve(mixed, weights.conv, cache.inputs, step.states)
        del mixed
        products = weights.gates(normed)
        gates = Gates(products[0], products[-1], self._mixer.beta_group)
        values = self._recurrence.update(
            convolved, gates, weights.rate, weights.rate_shift, cache.recurrent, step.states
        )
        del convolved
        return weights.output(self._recurrence.gated_norm(values, output_gates, weights.head_norm))

    def _apart(self, products: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, keys and values [T, C], and the gates of the output [T, H * V]."""
        if self._mixer.product_layout != "grouped":
            mixed, gates = products
            return mixed, gates
        mixer = self._mixer
        values = mixer.value_width // mixer.num_key_heads
        by_key_head = products[0].view(len(products[0]), mixer.num_key_heads, -1)
        *parts, gates = torch.split(by_key_head, [mixer.key_dim, mixer.key_dim, values, values], 2)
        return torch.cat([part.flatten(1) for part in parts], 1), gates.flatten(1)

    def long(
        self, weights: DeltaNetWeights, normed: torch.Tensor, cache: LayerStates, step: Step, out: torch.Tensor
    ) -> None:
        """See `LayerKind`: as other slices."""
        out.copy_(self(weights, normed, cache, step))
