"""`RowGates` on a GPU."""

from __future__ import annotations

import torch

from ballast.model.hybrid.residual import gate_kernels
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.shared_kernels.power_of_two import padded

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
            **early(rows.device),
        )

    def norm(
        self,
        rows: torch.Tensor,
        weight: torch.Tensor,
        parts: tuple[torch.Tensor, ...] = (),
        products: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `RowGates`."""
        num_tokens, num_rows, width = rows.shape
        normed, padded_width = torch.empty_like(rows), padded(width)
        # Any pointers, if nothing is added.
        first, second = (parts[0], parts[-1]) if parts else (rows, rows)
        products = rows[:, 0] if products is None else products
        gate_kernels.norm_rows[num_tokens, num_rows](
            *(rows, first, second, products, weight, normed, self._rms_eps),
            PARTS=len(parts),
            ROWS=num_rows,
            WIDTH=width,
            STRIDE=products.stride(0),
            PADDED_WIDTH=padded_width,
            num_warps=max(1, min(16, padded_width // 256)),
            **early(rows.device),
        )
        return normed

    def low(self, products: torch.Tensor, num_rows: int) -> torch.Tensor:
        """See `RowGates`."""
        num_tokens, rank = products.shape
        low, block = products.new_empty((num_tokens, rank)), min(_BLOCK, padded(rank))
        gate_kernels.low_units[num_tokens, -(-rank // block)](
            products,
            low,
            ROWS=num_rows,
            RANK=rank,
            STRIDE=products.stride(0),
            BLOCK=block,
            **early(products.device),
        )
        return low

    def mean(self, normed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """See `RowGates`."""
        num_tokens, num_rows, width = normed.shape
        mean, block = normed.new_empty((num_tokens, width)), min(_BLOCK, padded(width))
        gate_kernels.gated_mean[num_tokens, -(-width // block)](
            normed,
            gates,
            mean,
            ROWS=num_rows,
            WIDTH=width,
            BLOCK=block,
            **early(normed.device),
        )
        return mean
