"""`Recurrence` on a GPU."""

from __future__ import annotations

import math

import torch

from ballast.model.hybrid.recurrent import chunk_kernels, delta_kernels, row_decay_kernels
from ballast.model.hybrid.recurrent.recurrence import NORM_EPS, Gates
from ballast.model.hybrid.recurrent.sizes import BLOCK_TOKENS, CHUNK_TOKENS, COLUMNS, sizes_of, why_not_supported
from ballast.model.hybrid.recurrent.state_rows import Chunks, StateRows
from ballast.model.hybrid.recurrent.triton_convolution import convolve
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.layers.layer import RecurrentMixer

_NORMED_HEADS = 8
_PREPARED_HEADS = 8


class TritonRecurrence:
    """One token of each row is computed as it is defined, more tokens in chunks."""

    def __init__(self, mixer: RecurrentMixer, rms_eps: float) -> None:
        """Raises ValueError for widths that the kernels do not support."""
        problem = why_not_supported(mixer)
        if problem is not None:
            raise ValueError(problem)
        self._rms_eps = rms_eps
        self._sizes = sizes = sizes_of(mixer)
        self._rows = {"HEADS": sizes.num_heads, "KEY": sizes.key_dim, "CHANNELS": sizes.channels}
        self._heads = self._rows | {"KEY_HEADS": sizes.num_key_heads}
        self._states = self._heads | {
            "ALTERNATE": sizes.heads_alternate,
            "VALUE": sizes.v_dim,
            "DECAYS_ROWS": sizes.decays_rows,
            "BLOCK": COLUMNS,
        }

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
        log_decays, betas = self._prepared(convolved, gates, rate, rate_shift)
        out = convolved.new_empty((len(convolved), sizes.num_heads, sizes.v_dim))
        if rows.num_single:
            delta_kernels.update_one_each[rows.num_single, sizes.num_heads, sizes.v_dim // COLUMNS](
                convolved,
                log_decays,
                betas,
                states,
                rows.before,
                rows.after,
                out,
                **self._states,
                **early(convolved.device),
            )
        if rows.chunks is not None:
            self._update_chunks((convolved, log_decays, betas), states, rows, rows.chunks, out)
        return out

    def _prepared(
        self, convolved: torch.Tensor, gates: Gates, rate: torch.Tensor, rate_shift: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logarithmic decays [T, H] or [T, H, K], and betas [T, H]. Norms queries and keys in place."""
        sizes, num_tokens = self._sizes, len(convolved)
        betas = convolved.new_empty((num_tokens, sizes.num_heads))
        log_decays = betas.new_empty((*betas.shape, sizes.key_dim) if sizes.decays_rows else betas.shape)
        given = gates.beta, gates.alpha[:, gates.group :], rate, rate_shift
        strides = {"BETA_STRIDE": gates.beta.stride(0), "ALPHA_STRIDE": gates.alpha.stride(0)}
        arguments = convolved, *given, log_decays, betas, NORM_EPS, 1.0 / math.sqrt(sizes.key_dim)
        if sizes.decays_rows:
            row_decay_kernels.prepare_rows[num_tokens, -(-sizes.num_heads // _PREPARED_HEADS)](
                *arguments, **self._rows, **strides, BOUND=sizes.lower_bound, BLOCK=_PREPARED_HEADS
            )
            return log_decays, betas
        delta_kernels.prepare[(num_tokens,)](
            *arguments,
            **self._heads,
            **strides,
            GROUP=gates.group,
            PADDED_HEADS=padded(sizes.num_heads),
            PADDED_KEY_HEADS=padded(sizes.num_key_heads),
            **early(log_decays.device),
        )
        return log_decays, betas

    def _update_chunks(
        self,
        prepared: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        states: torch.Tensor,
        rows: StateRows,
        chunks: Chunks,
        out: torch.Tensor,
    ) -> None:
        """The tokens of chunks. `prepared`: inputs, logarithmic decays and betas."""
        sizes = self._sizes
        inverses, scores = (out.new_empty((*out.shape[:2], CHUNK_TOKENS)) for _ in range(2))
        chunk_decays = prepared[1]  # any pointer, if a state has one decay
        if sizes.decays_rows:
            chunk_decays = out.new_empty((len(chunks.rows), sizes.num_heads, sizes.key_dim))
            self._solve_rows(prepared, chunks, inverses, scores, chunk_decays)
        else:
            chunk_kernels.solve_chunks[len(chunks.rows), sizes.num_heads](
                *prepared,
                chunks.begins,
                chunks.ends,
                inverses,
                scores,
                **self._heads,
                ALTERNATE=sizes.heads_alternate,
                TOKENS=CHUNK_TOKENS,
                num_stages=1,
            )
        chunk_kernels.pass_chunks[len(rows.before) - rows.num_single, sizes.num_heads, sizes.v_dim // COLUMNS](
            *prepared,
            inverses,
            scores,
            chunk_decays,
            states,
            rows.before,
            chunks.of_row,
            chunks.begins,
            chunks.ends,
            chunks.slots,
            out,
            rows.num_single,
            **self._states,
            TOKENS=CHUNK_TOKENS,
            num_stages=1,
        )

    def _solve_rows(
        self,
        prepared: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        chunks: Chunks,
        inverses: torch.Tensor,
        scores: torch.Tensor,
        chunk_decays: torch.Tensor,
    ) -> None:
        """What `solve_chunks` does, for a decay per row of a state. Replaces inputs and logarithmic decays."""
        inputs, log_decays, _ = prepared
        bounds = chunks.begins, chunks.ends
        num_chunks, num_heads = len(chunks.rows), self._sizes.num_heads
        row_decay_kernels.score_blocks[num_chunks, num_heads, CHUNK_TOKENS // BLOCK_TOKENS](
            *prepared, *bounds, inverses, scores, **self._rows, TOKENS=CHUNK_TOKENS, BLOCK=BLOCK_TOKENS, num_stages=1
        )
        row_decay_kernels.invert_chunks[num_chunks, num_heads](inverses, *bounds, HEADS=num_heads, TOKENS=CHUNK_TOKENS)
        row_decay_kernels.fade_chunks[num_chunks, num_heads](
            inputs, log_decays, *bounds, chunk_decays, **self._rows, BLOCK=BLOCK_TOKENS
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
            SIGMOID=self._sizes.has_sigmoid_gate,
            BLOCK=_NORMED_HEADS,
            **early(values.device),
        )
        return values.flatten(1)
