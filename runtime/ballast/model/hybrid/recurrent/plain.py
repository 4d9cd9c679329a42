"""`Recurrence` in torch's operations, token after token, on any device and in any float type."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from ballast.model.hybrid.recurrent.recurrence import NORM_EPS, Gates
from ballast.model.hybrid.recurrent.sizes import sizes_of
from ballast.model.hybrid.recurrent.state_rows import StateRows
from ballast.model.layers.layer import RecurrentMixer


class PlainRecurrence:
    """Computes each token from the state before it, so that the division of a step changes no bit."""

    def __init__(self, mixer: RecurrentMixer, rms_eps: float) -> None:
        self._sizes = sizes_of(mixer)
        self._rms_eps = rms_eps

    def convolve(self, x: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """See `Recurrence`."""
        return convolve(x, weights, inputs, rows)

    def update(
        self,
        convolved: torch.Tensor,
        gates: Gates,
        rate: torch.Tensor,
        rate_shift: torch.Tensor,
        states: torch.Tensor,
        rows: StateRows,
    ) -> torch.Tensor:
        """See `Recurrence`."""
        sizes = self._sizes
        keys, values = convolved.tensor_split((2 * sizes.key_width,), 1)
        keyed = keys.view(len(keys), 2, sizes.num_key_heads, sizes.key_dim)
        keyed *= (keyed.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()
        keyed[:, 0] *= sizes.key_dim**-0.5
        of_heads = torch.arange(sizes.num_heads, device=convolved.device)
        ratio = sizes.num_heads // sizes.num_key_heads
        key_head = of_heads % sizes.num_key_heads if sizes.heads_alternate else of_heads // ratio
        beta, alpha = gates.parts()
        # [T, H, K], or [T, H, 1] for one decay of all rows.
        shifted = (alpha + rate_shift).view(len(alpha), sizes.num_heads, -1)
        rates = rate[:, None]
        bounded = sizes.lower_bound * (-rates * shifted).sigmoid()
        decays = (bounded if sizes.lower_bound < 0 else rates * F.softplus(shifted)).exp()
        betas = beta.sigmoid()
        values = values.view(len(values), sizes.num_heads, sizes.v_dim)
        out = torch.empty_like(values)
        for row, (begin, end) in enumerate(_bounds(rows)):
            slot = int(rows.before[row])
            state = states[slot].clone() if slot else torch.zeros_like(states[0])
            left = list(rows.left_by(row))
            for token in range(begin, end):
                query, key = (each[key_head][:, :, None] for each in keyed[token])
                state = state * decays[token, :, :, None]
                change = (values[token] - (state * key).sum(1)) * betas[token, :, None]
                state = state + key * change[:, None, :]
                out[token] = (state * query).sum(1)
                for at, to in left:
                    if at == token + 1:
                        states[to] = state
        return out

    def gated_norm(self, values: torch.Tensor, gates: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Recurrence`."""
        factors = gates.sigmoid() if self._sizes.has_sigmoid_gate else F.silu(gates)
        return (F.rms_norm(values, weight.shape, weight, self._rms_eps) * factors.view(values.shape)).flatten(1)


def convolve(x: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, rows: StateRows) -> torch.Tensor:
    """See `Convolve`."""
    kept = len(weights) - 1
    out = x.new_empty(x.shape)
    for row, (begin, end) in enumerate(_bounds(rows)):
        slot = int(rows.before[row])
        earlier = inputs[slot] if slot else torch.zeros_like(inputs[0])
        seen = torch.cat([earlier, x[begin:end]])
        sums = sum(seen[tap : tap + end - begin] * weight for tap, weight in enumerate(weights))
        out[begin:end] = F.silu(torch.as_tensor(sums))
        for at, left in rows.left_by(row):
            inputs[left] = seen[at - begin : at - begin + kept]
    return out


def _bounds(rows: StateRows) -> list[tuple[int, int]]:
    return list(itertools.pairwise(rows.begins.tolist()))
