"""The operations of recurrent layers between their matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ballast.model.hybrid.recurrent.state_rows import StateRows

NORM_EPS = 1e-6
"""Added to the sum of squares of a query or a key, which are normed without weights."""


@dataclass(frozen=True, slots=True)
class Gates:
    """The products that give each token's betas and decays, whose rows may be strided."""

    beta: torch.Tensor  # [T, H]
    alpha: torch.Tensor  # [T, H], or [T, H * K] if each row of a state has a decay
    group: int = 0
    """If not 0, `beta` and `alpha` are one tensor [T, 2 H]: the betas of this many heads, then their alphas, and so on.
    """

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Betas and alphas, each [T, H]."""
        if not self.group:
            return self.beta, self.alpha
        betas, alphas = self.beta.reshape(len(self.beta), -1, 2, self.group).unbind(2)
        return betas.flatten(1), alphas.flatten(1)


class Convolve(Protocol):
    """A short convolution over the tokens of each row. Shapes: T tokens, C channels."""

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """silu of the causal convolution of x [T, C], whose rows may be strided, with weights [taps, C], the last of
        which belongs to a token itself → [T, C]. `inputs` [slots, taps - 1, C] are the states, the oldest input first.
        All numbers are float32."""


class Recurrence(Protocol):
    """The operations of layers with one mixer. Shapes: T tokens, R rows, H heads of values with key width K and value
    width V, C channels. All numbers are float32."""

    def convolve(self, x: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """See `Convolve`."""

    def update(
        self,
        convolved: torch.Tensor,
        gates: Gates,
        rate: torch.Tensor,
        rate_shift: torch.Tensor,
        states: torch.Tensor,
        rows: StateRows,
    ) -> torch.Tensor:
        """The output of each token, [T, H, V]. `convolved` [T, C]: queries and keys of all key heads, which are
        overwritten, then values. A state decays by exp(rate * softplus(alpha + rate_shift)), where both are [H]. If
        each row of a state has a decay, alpha is [T, H * K] and rate_shift [H * K], and decays may have a lower bound.
        `states` [slots, H, K, V]."""

    def gated_norm(self, values: torch.Tensor, gates: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of each head of values [T, H, V] with weight [V], times silu of gates [T, H * V], or their sigmoid
        in Kimi Delta Attention → [T, H * V]. Rows of gates may be strided. Overwrites the values."""
