"""`Recurrence` in torch's operations, token after token, on any device and in any float type."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from ballast.model.hybrid.recurrent.recurrence import NORM_EPS, Gates
from ballast.model.hybrid.recurrent.state_rows import StateRows
from ballast.model.layers.delta_net import DeltaNetSpec


class TorchRecurrence:
    """Computes each token from the state before it, so that the division of a step changes no bit."""

    def __init__(self, mixer: DeltaNetSpec, rms_eps: float) -> None:
        self._mixer = mixer
        self._rms_eps = rms_eps

    def convolve(self, x: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """See `Recurrence`."""
        kept = len(weights) - 1
        out = x.new_empty(x.shape)
        for row, (begin, end) in enumerate(_bounds(rows)):
            slot = int(rows.before[row])
            earlier = inputs[slot] if slot else torch.zeros_like(inputs[0])
            seen = torch.cat([earlier, x[begin:end]])
            sums = sum(seen[tap : tap + end - begin] * weight for tap, weight in enumerate(weights))
            out[begin:end] = F.silu(torch.as_tensor(sums))
            for at, left in _left(rows, row):
                inputs[left] = seen[at - begin : at - begin + kept]
        return out

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
        mixer = self._mixer
        keys, values = convolved.tensor_split((2 * mixer.key_width,), 1)
        keyed = keys.view(len(keys), 2, mixer.num_key_heads, mixer.key_dim)
        keyed *= (keyed.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()
        keyed[:, 0] *= mixer.key_dim**-0.5
        of_heads = torch.arange(mixer.num_heads)
        ratio = mixer.num_heads // mixer.num_key_heads
        key_head = of_heads % mixer.num_key_heads if mixer.heads_alternate else of_heads // ratio
        beta, alpha = gates.parts()
        decays, betas = (rate * F.softplus(alpha + rate_shift)).exp(), beta.sigmoid()
        values = values.view(len(values), mixer.num_heads, mixer.v_dim)
        out = torch.empty_like(values)
        for row, (begin, end) in enumerate(_bounds(rows)):
            slot = int(rows.before[row])
            state = states[slot].clone() if slot else torch.zeros_like(states[0])
            left = list(_left(rows, row))
            for token in range(begin, end):
                query, key = (each[key_head][:, :, None] for each in keyed[token])
                state = state * decays[token, :, None, None]
                change = (values[token] - (state * key).sum(1)) * betas[token, :, None]
                state = state + key * change[:, None, :]
                out[token] = (state * query).sum(1)
                for at, to in left:
                    if at == token + 1:
                        states[to] = state
        return out

    def gated_norm(self, values: torch.Tensor, gates: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Recurrence`."""
        return (F.rms_norm(values, weight.shape, weight, self._rms_eps) * F.silu(gates).view(values.shape)).flatten(1)


def _bounds(rows: StateRows) -> list[tuple[int, int]]:
    return list(itertools.pairwise(rows.begins.tolist()))


def _left(rows: StateRows, row: int) -> list[tuple[int, int]]:
    """The states that a row leaves: the token that follows, and the slot."""
    if row < rows.num_single or rows.chunks is None:
        left = [(int(rows.begins[row + 1]), int(rows.after[row]))]
    else:
        begin, end = rows.chunks.of_row[row : row + 2].tolist()
        left = [(int(rows.chunks.ends[at]), int(rows.chunks.slots[at])) for at in range(begin, end)]
    return [(at, slot) for at, slot in left if slot]
