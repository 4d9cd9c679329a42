"""`StreamMixer` on a GPU."""

from __future__ import annotations

import torch

from ballast.model.hybrid.residual import stream_kernels
from ballast.model.hybrid.residual.residual import Connection
from ballast.model.hybrid.shared_kernels.early_launch import early
from ballast.model.hybrid.shared_kernels.power_of_two import padded
from ballast.model.layers.stream import StreamSpec

_BLOCK = 512


class TritonStreamMixer:
    """`StreamMixer` for a power of two rows."""

    def __init__(self, spec: StreamSpec, rms_eps: float) -> None:
        self._spec = spec
        self._rms_eps = rms_eps

    def mix(self, rows: torch.Tensor, parts: tuple[torch.Tensor, ...], weights: torch.Tensor) -> None:
        """See `StreamMixer`."""
        num_tokens, num_rows, width = rows.shape
        first, second = parts[0], parts[-1]
        block = min(_BLOCK, padded(width))
        stream_kernels.mix[num_tokens, -(-width // block)](
            *(rows, first, second, weights),
            ROWS=num_rows,
            WIDTH=width,
            HAS_SECOND=len(parts) > 1,
            BLOCK=block,
            **early(rows.device),
        )

    def read(
        self, rows: torch.Tensor, products: torch.Tensor, connection: Connection, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `StreamMixer`."""
        num_tokens, num_rows, width = rows.shape
        normed, weights = rows.new_empty((num_tokens, width)), torch.empty_like(products)
        padded_width = padded(width)
        stream_kernels.read[(num_tokens,)](
            *(rows, products, connection.base, connection.scales, norm, weights, normed),
            *(self._spec.eps, self._rms_eps),
            ROWS=num_rows,
            WIDTH=width,
            ROUNDS=self._spec.rounds,
            PADDED_WIDTH=padded_width,
            num_warps=max(1, min(16, num_rows * padded_width // 1024)),
            **early(rows.device),
        )
        return normed, weights
