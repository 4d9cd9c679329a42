"""`RowGates` on a GPU."""

from __future__ import annotations

import torch

from ballast.model.hybrid.power_of_two import padded
from ballast.model.hybrid.residual import gate_kernels

_BLOCK = 512


class TritonRowGates:
    """`RowGates` for any number of rows."""

    def __init__(self, rms_eps: float) -> None:
        self._rms_eps = rms_eps

    def add(self, rows: torch.Tensor, parts: tuple[torch.Tensor, ...], products: torch.Tensor) -> None:
        """See `RowGates`."""
        num_tokens, num_rows, width = rows.shape
        block = min(_BLOCK, padded(width))
        gate_kernels.add_to_rows[num_tokens, -(-width // block)](
            *(rows, parts[0], parts[-1], products),
            ROWS=num_rows,
            WIDTH=width,
            STRIDE=products.stride(0),
            HAS_SECOND=len(parts) > 1,
            BLOCK=block,
        )

    def norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `RowGates`."""
        num_tokens, num_rows, width = rows.shape
        normed, padded_width = torch.empty_like(rows), padded(width)
        gate_kernels.norm_rows[num_tokens, num_rows](
            *(rows, weight, normed, self._rms_eps),
            ROWS=num_rows,
            WIDTH=width,
            PADDED_WIDTH=padded_width,
            num_warps=max(1, min(16, padded_width // 256)),
        )
        return normed

    def mean(self, normed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """See `RowGates`."""
        num_tokens, num_rows, width = normed.shape
        mean, block = normed.new_empty((num_tokens, width)), min(_BLOCK, padded(width))
        gate_kernels.gated_mean[num_tokens, -(-width // block)](
            normed, gates, mean, ROWS=num_rows, WIDTH=width, BLOCK=block
        )
        return mean
