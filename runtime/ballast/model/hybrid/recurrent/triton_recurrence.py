"""`Recurrence` on a GPU."""

from __future__ import annotations

import math

import torch

from ballast.model.hybrid.power_of_two import padded
from ballast.model.hybrid.recurrent import chunk_kernels, conv_kernels, delta_kernels
from ballast.model.hybrid.recurrent.recurrence import NORM_EPS, Gates
from ballast.model.hybrid.recurrent.sizes import CHUNK_TOKENS, COLUMNS, why_not_supported
from ballast.model.hybrid.recurrent.state_rows import Chunks, StateRows
from ballast.model.layers.delta_net import DeltaNetSpec

_CHANNELS = 256
_CHUNK_CHANNELS = 64
_NORMED_HEADS = 8


class TritonRecurrence:
    """One token of each row is computed as it is defined, more tokens in chunks."""

    def __init__(self, mixer: DeltaNetSpec, rms_eps: float) -> None:
        """Raises ValueError for widths that the kernels do not support."""
        problem = why_not_supported(mixer)
        if problem is not None:
            raise ValueError(problem)
        self._rms_eps = rms_eps
        self._mixer = mixer
        self._heads = {
            "HEADS": mixer.num_heads,
            "KEY_HEADS": mixer.num_key_heads,
            "KEY": mixer.key_dim,
            "CHANNELS": mixer.channels,
        }

    def convolve(self, x: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """See `Recurrence`."""
        num_tokens, channels = x.shape
        out = x.new_empty((num_tokens, channels))
        sizes = {"CHANNELS": channels, "X_STRIDE": x.stride(0), "TAPS": self._mixer.conv_taps}
        num_blocks, chunks = -(-channels // _CHANNELS), rows.chunks
        if rows.num_single:
            conv_kernels.convolve_one_each[rows.num_single, num_blocks](
                x, weights, inputs, rows.before, rows.after, out, **sizes, BLOCK=_CHANNELS
            )
        if chunks is None:
            return out
        conv_kernels.convolve[len(chunks.rows), -(-channels // _CHUNK_CHANNELS)](
            x,
            weights,
            inputs,
            rows.begins,
            rows.before,
            chunks.rows,
            chunks.begins,
            chunks.ends,
            out,
            **sizes,
            TOKENS=CHUNK_TOKENS,
            BLOCK=_CHUNK_CHANNELS,
        )
        conv_kernels.keep_inputs[len(rows.before) - rows.num_single, num_blocks](
            x,
            inputs,
            rows.begins,
            rows.before,
            chunks.of_row,
            chunks.ends,
            chunks.slots,
            rows.num_single,
            **sizes,
            BLOCK=_CHANNELS,
        )
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
        mixer, num_tokens = self._mixer, len(convolved)
        log_decays, betas = (convolved.new_empty((num_tokens, mixer.num_heads)) for _ in range(2))
        delta_kernels.prepare[(num_tokens,)](
            convolved,
            gates.beta,
            gates.alpha[:, gates.group :],
            rate,
            rate_shift,
            log_decays,
            betas,
            NORM_EPS,
            1.0 / math.sqrt(mixer.key_dim),
            **self._heads,
            BETA_STRIDE=gates.beta.stride(0),
            ALPHA_STRIDE=gates.alpha.stride(0),
            GROUP=gates.group,
            PADDED_HEADS=padded(mixer.num_heads),
            PADDED_KEY_HEADS=padded(mixer.num_key_heads),
        )
        out = convolved.new_empty((num_tokens, mixer.num_heads, mixer.v_dim))
        if rows.num_single:
            delta_kernels.update_one_each[rows.num_single, mixer.num_heads, mixer.v_dim // COLUMNS](
                convolved,
                log_decays,
                betas,
                states,
                rows.before,
                rows.after,
                out,
                **self._heads,
                ALTERNATE=mixer.heads_alternate,
                VALUE=mixer.v_dim,
                BLOCK=COLUMNS,
            )
        if rows.chunks is not None:
            self._update_chunks((convolved, log_decays, betas), states, rows, rows.chunks, out)
        return out

    def _update_chunks(
        self,
        prepared: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        states: torch.Tensor,
        rows: StateRows,
        chunks: Chunks,
        out: torch.Tensor,
    ) -> None:
        """The tokens of chunks. `prepared`: inputs, logarithmic decays and betas."""
        mixer = self._mixer
        inverses, scores = (out.new_empty((*out.shape[:2], CHUNK_TOKENS)) for _ in range(2))
        chunk_kernels.solve_chunks[len(chunks.rows), mixer.num_heads](
            *prepared,
            chunks.begins,
            chunks.ends,
            inverses,
            scores,
            **self._heads,
            ALTERNATE=mixer.heads_alternate,
            TOKENS=CHUNK_TOKENS,
            num_stages=1,
        )
        chunk_kernels.pass_chunks[len(rows.before) - rows.num_single, mixer.num_heads, mixer.v_dim // COLUMNS](
            *prepared,
            inverses,
            scores,
            states,
            rows.before,
            chunks.of_row,
            chunks.begins,
            chunks.ends,
            chunks.slots,
            out,
            rows.num_single,
            **self._heads,
            ALTERNATE=mixer.heads_alternate,
            VALUE=mixer.v_dim,
            TOKENS=CHUNK_TOKENS,
            BLOCK=COLUMNS,
            num_stages=1,
        )

    def gated_norm(self, values: torch.Tensor, gates: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `Recurrence`."""
        num_tokens, num_heads, v_dim = values.shape
        delta_kernels.gated_norm[num_tokens, -(-num_heads // _NORMED_HEADS)](
            values,
            gates,
            weight,
            self._rms_eps,
            HEADS=num_heads,
            VALUE=v_dim,
            GATE_STRIDE=gates.stride(0),
            PADDED_VALUE=padded(v_dim),
            BLOCK=_NORMED_HEADS,
        )
        return values.flatten(1)
