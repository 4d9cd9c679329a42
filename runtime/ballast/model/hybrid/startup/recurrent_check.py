"""The kernels of recurrent layers on a GPU, checked before they are used."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch

from ballast.model.hybrid.faults.kernel_check import ParallelCompile, require, why_different
from ballast.model.hybrid.recurrent.plain import PlainRecurrence
from ballast.model.hybrid.recurrent.recurrence import Gates, Recurrence
from ballast.model.hybrid.recurrent.sizes import CHUNK_TOKENS, sizes_of
from ballast.model.hybrid.recurrent.state_rows import PlannedRows
from ballast.model.hybrid.recurrent.triton_recurrence import TritonRecurrence
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.layer import RecurrentMixer

_BEGUN = 4
"""Tokens of the prompt before the first full chunk."""
_NUM_TOKENS = 2 + _BEGUN + CHUNK_TOKENS + 2
_NUM_SLOTS = 6


def recurrent_kernels(
    mixer: RecurrentMixer, rms_eps: float, device: torch.device, parallel_compile: ParallelCompile = nullcontext
) -> TritonRecurrence:
    """The operations on a CUDA device. Recurrent layers have no other kernels there, so kernels that cannot be compiled
    or are wrong raise ValueError, as do heads of unsupported widths. Launches inside the context that
    `parallel_compile` returns only compile."""
    kernels, trial = TritonRecurrence(mixer, rms_eps), Trial(mixer, rms_eps, device)
    require("linear attention", partial(trial.run, kernels), partial(trial.why_wrong, kernels), parallel_compile)
    return kernels


class Trial:
    """A step of three rows: a token that updates a state in place, the first token of a request, and a prompt that
    continues a state and leaves one on its way. Its chunks are short, full and short."""

    def __init__(self, mixer: RecurrentMixer, rms_eps: float, device: torch.device) -> None:
        self._plain, net = PlainRecurrence(mixer, rms_eps), sizes_of(mixer)
        rng = torch.Generator(device).manual_seed(0)

        def some(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=rng, device=device)

        def products(*widths: int) -> tuple[torch.Tensor, ...]:
            """Products of one matrix, or of several, as in the layers."""
            if net.decays_rows:
                return tuple(some(_NUM_TOKENS, width) for width in widths)
            return torch.split(some(_NUM_TOKENS, sum(widths)), list(widths), 1)

        num_decays = net.num_heads * (net.key_dim if net.decays_rows else 1)
        group = mixer.beta_group if isinstance(mixer, DeltaNetSpec) else 0
        self._x, self._output_gates = products(net.channels, net.num_heads * net.v_dim)
        betas, alphas = products(net.num_heads, num_decays)
        if group:
            betas = alphas = some(_NUM_TOKENS, 2 * net.num_heads)
        self._gates = Gates(betas, alphas, group)
        self._conv, self._norm = some(net.conv_taps, net.channels), some(net.v_dim)
        # Heads that keep their states for long, and heads that forget them soon.
        self._rate = -torch.linspace(0.02, 1.0, net.num_heads, device=device)
        self._rate_shift = some(num_decays)
        self._inputs = some(_NUM_SLOTS, net.conv_taps - 1, net.channels)
        self._states = some(_NUM_SLOTS, net.num_heads, net.key_dim, net.v_dim)
        for states in (self._inputs, self._states):
            states[0] = torch.nan  # which no row may read
        first, last = 2 + _BEGUN, 2 + _BEGUN + CHUNK_TOKENS
        chunks = (2, 2, first, 4), (2, first, last, 0), (2, last, _NUM_TOKENS, 5)
        planned = PlannedRows([0, 1, 2, _NUM_TOKENS], [1, 0, 2], [1, 3, 5], chunks, num_single=2)
        self._rows = planned.send(lambda host: torch.from_numpy(host).to(device))

    def run(self, recurrence: Recurrence) -> dict[str, torch.Tensor]:
        """Results by name. Each operation gets what the one before it gives."""
        inputs, states = self._inputs.clone(), self._states.clone()
        convolved = recurrence.convolve(self._x, self._conv, inputs, self._rows)
        results = {"convolutions": convolved.clone()}
        given = self._gates, self._rate, self._rate_shift, states
        values = recurrence.update(convolved, *given, self._rows)
        results["values"] = values.clone()
        results["normed values"] = recurrence.gated_norm(values, self._output_gates, self._norm)
        return results | {"states": states[1:], "last inputs": inputs[1:]}

    def why_wrong(self, recurrence: Recurrence) -> str | None:
        """The reason why operations are unreliable, or None. Compares their results with the plain implementation."""
        return why_different(self.run(recurrence), self.run(self._plain))
