"""`Convolve` on a GPU."""

from __future__ import annotations

import torch

from ballast.model.hybrid.recurrent import conv_kernels
from ballast.model.hybrid.recurrent.sizes import CHUNK_TOKENS
from ballast.model.hybrid.recurrent.state_rows import StateRows
from ballast.model.hybrid.shared_kernels.early_launch import early

_CHANNELS = 256
_CHUNK_CHANNELS = 64


def convolve(x: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, rows: StateRows) -> torch.Tensor:
    """See `Convolve`."""
    num_tokens, channels = x.shape
    out = x.new_empty((num_tokens, channels))
    sizes = {"CHANNELS": channels, "X_STRIDE": x.stride(0), "TAPS": len(weights)}
    num_blocks, chunks = -(-channels // _CHANNELS), rows.chunks
    if rows.num_single:
        conv_kernels.convolve_one_each[rows.num_single, num_blocks](
            x,
            weights,
            inputs,
            rows.before,
            rows.after,
            out,
            **sizes,
            BLOCK=_CHANNELS,
            **early(x.device),
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
