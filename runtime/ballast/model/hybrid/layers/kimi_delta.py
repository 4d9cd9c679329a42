"""Kimi Delta Attention of a slice. Shapes: T tokens, D hidden, H heads, W = H * head_dim."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.linear import Linear, Linears
from ballast.model.hybrid.recurrent.recurrence import Gates, Recurrence
from ballast.model.hybrid.recurrent.state_pool import LayerStates
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.kimi_delta import KimiDeltaSpec


@dataclass(frozen=True, slots=True)
class KimiDeltaWeights:
    """A layer's weights. Decays and the gates of the output pass a low rank."""

    inputs: Linear  # D → 3 W: queries, keys and values
    down: Linears  # D → rank; rank; H: decays, gates and betas
    decay_up: Linear  # rank → W
    gate_up: Linear  # rank → W
    conv: torch.Tensor  # [taps, 3 W]
    rate: torch.Tensor  # [H], below 0
    rate_shift: torch.Tensor  # [W]
    head_norm: torch.Tensor  # [head_dim]
    output: Linear  # W → D

    @staticmethod
    def load(tensors: DeviceTensors, mixer: KimiDeltaSpec) -> KimiDeltaWeights:
        branches = ("query", "key", "value")
        convs = [tensors.vector(f"{name}_conv").view(mixer.width, mixer.conv_taps) for name in branches]
        return KimiDeltaWeights(
            inputs=tensors.joined(*branches),
            down=tensors.linears("decay_down", "gate_down", "beta"),
            decay_up=tensors.linear("decay_up"),
            gate_up=tensors.linear("gate_up"),
            conv=torch.cat(convs).T.contiguous(),
            rate=tensors.vector("rate"),
            rate_shift=tensors.vector("rate_shift"),
            head_norm=tensors.vector("head_norm"),
            output=tensors.linear("output"),
        )


class KimiDeltaLayer:
    """The recurrent `LayerKind` of layers with one mixer."""

    attend = None
    has_window = False

    def __init__(self, recurrence: Recurrence) -> None:
        self._recurrence = recurrence

    def __call__(self, weights: KimiDeltaWeights, normed: torch.Tensor, cache: LayerStates, step: Step) -> torch.Tensor:
        """See `LayerKind`."""
        assert step.states is not None, "steps of models with recurrent layers have states"
        mixed = weights.inputs(normed)
        convolved = self._recurrence.convolve(mixed, weights.conv, cache.inputs, step.states)
        del mixed
        decays, gates, betas = weights.down(normed)
        values = self._recurrence.update(
            convolved,
            Gates(betas, weights.decay_up(decays)),
            weights.rate,
            weights.rate_shift,
            cache.recurrent,
            step.states,
        )
        del convolved
        return weights.output(self._recurrence.gated_norm(values, weights.gate_up(gates), weights.head_norm))

    def long(
        self, weights: KimiDeltaWeights, normed: torch.Tensor, cache: LayerStates, step: Step, out: torch.Tensor
    ) -> None:
        """See `LayerKind`: as other slices."""
        out.copy_(self(weights, normed, cache, step))
