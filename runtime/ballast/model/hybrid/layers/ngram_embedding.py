"""The n-gram embedding that a layer adds to each row of its stream (Qwen3.8-Flash-Next).

Shapes: T tokens, D hidden, N rows of a token, W numbers of the rows of a table that belong to a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ballast.model.hybrid.device_tensors import DeviceTensors
from ballast.model.hybrid.layers.ngram_sizes import GATED_AT_ONCE
from ballast.model.hybrid.linear import Linear
from ballast.model.hybrid.recurrent.recurrence import Convolve
from ballast.model.hybrid.steps.pieces import Pieces
from ballast.model.hybrid.steps.slices import even_bounds
from ballast.model.hybrid.steps.step import Step
from ballast.model.layers.ngram import NgramSpec

_MIN_SCORE = 1e-6

NormRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The RMS norm of each row [T, N, D], with weight [N * D]."""


@dataclass(frozen=True, slots=True)
class NgramWeights:
    """A layer's weights."""

    key: Linear  # W → N * D
    value: Linear  # W → D
    key_norm: torch.Tensor  # [N * D], of each row apart
    query_norm: torch.Tensor  # [N * D]
    conv_norm: torch.Tensor  # [N * D]
    conv: torch.Tensor  # [inputs, N * D], of each input that the convolution keeps, and of a token's own; most are 0

    @staticmethod
    def load(tensors: DeviceTensors, ngram: NgramSpec) -> NgramWeights:
        taps = tensors.vector("ngram_conv").view(-1, ngram.conv_taps).T
        conv = taps.new_zeros((ngram.kept_inputs + 1, taps.shape[1]))
        conv[:: len(ngram.multipliers)] = taps
        key_norm, query_norm, conv_norm = (tensors.vector(f"ngram_{name}_norm") for name in ("key", "query", "conv"))
        products = tensors.linear("ngram_key"), tensors.linear("ngram_value")
        return NgramWeights(*products, key_norm, query_norm, conv_norm, conv)


class NgramEmbedding:
    """Adds the embedding on one device."""

    def __init__(self, norm: NormRows, convolve: Convolve) -> None:
        self._norm = norm
        self._convolve = convolve

    def pieces(self, weights: NgramWeights, rows: torch.Tensor, states: torch.Tensor, step: Step) -> Pieces[None]:
        """Add to the rows [T, N, D] of a step's tokens in place, one slice per advance of the generator. `states`: see
        `NgramStates`."""
        assert step.ngrams is not None, "steps of models with a table have its rows"
        if not step.slices:
            self._add(weights, rows, step.ngrams, states, step)
            yield
        for part in step.slices:
            of_slice = slice(part.begin, part.end)
            self._add(weights, rows[of_slice], step.ngrams[of_slice], states, part.step)
            yield

    def _add(
        self, weights: NgramWeights, rows: torch.Tensor, embedded: torch.Tensor, states: torch.Tensor, step: Step
    ) -> None:
        assert step.states is not None, "steps of models with a table have states"
        normed = torch.empty_like(rows)
        for begin, end in even_bounds(0, len(rows), GATED_AT_ONCE):
            normed[begin:end] = self._gated(weights, rows[begin:end], embedded[begin:end])
        rows += self._convolve(normed.flatten(1), weights.conv, states, step.states).view(rows.shape)

    def _gated(self, weights: NgramWeights, rows: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Add the values of tokens to their rows, with a gate for each row; returns their norm [T, N, D]."""
        keys = self._norm(weights.key(embedded).view(rows.shape), weights.key_norm)
        keys *= self._norm(rows, weights.query_norm)
        scores = keys.sum(2) / math.sqrt(rows.shape[2])
        del keys
        shares = (scores.sign() * scores.abs().clamp_min(_MIN_SCORE).sqrt()).sigmoid()
        gated = shares[..., None] * weights.value(embedded)[:, None]
        rows += gated
        return self._norm(gated, weights.conv_norm)
