"""`StreamMixer` and `RowGates` in torch's operations, on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ballast.model.hybrid.residual.residual import Connection
from ballast.model.layers.stream import StreamSpec


class TorchStreamMixer:
    """Hyper-connections as they are defined."""

    def __init__(self, spec: StreamSpec, rms_eps: float) -> None:
        self._spec = spec
        self._rms_eps = rms_eps

    def mix(self, rows: torch.Tensor, parts: tuple[torch.Tensor, ...], weights: torch.Tensor) -> None:
        """See `StreamMixer`."""
        _, adding, mixing = self._kinds(weights)
        mixed = torch.einsum("tij,tid->tjd", mixing, rows)
        rows.copy_(mixed + adding[..., None] * torch.stack(parts).sum(0)[:, None])

    def read(
        self, rows: torch.Tensor, products: torch.Tensor, connection: Connection, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `StreamMixer`."""
        eps = self._spec.eps
        inverse = (rows.square().mean((1, 2))[:, None] + self._rms_eps).rsqrt()
        base = self._kinds(connection.base[None])
        reading, adding, mixing = (
            kind * scale + own
            for kind, scale, own in zip(self._kinds(products * inverse), connection.scales, base, strict=True)
        )
        reading, adding, mixing = reading.sigmoid() + eps, 2 * adding.sigmoid(), mixing.softmax(2) + eps
        mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
        for _ in range(self._spec.rounds - 1):
            mixing = mixing / (mixing.sum(2, keepdim=True) + eps)
            mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
        total = (reading[..., None] * rows).sum(1)
        weights = torch.cat([reading, adding, mixing.flatten(1)], 1)
        return F.rms_norm(total, norm.shape, norm, self._rms_eps), weights

    def _kinds(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Those to read each row [T, N], to add to each [T, N], and to mix them [T, N, N]."""
        num_rows = self._spec.num_rows
        reading, adding, mixing = torch.split(weights, [num_rows, num_rows, num_rows**2], 1)
        return reading, adding, mixing.view(-1, num_rows, num_rows)


class TorchRowGates:
    """Gated rows as they are defined."""

    def __init__(self, rms_eps: float) -> None:
        self._rms_eps = rms_eps

    def add(self, rows: torch.Tensor, parts: tuple[torch.Tensor, ...], products: torch.Tensor) -> None:
        """See `RowGates`."""
        weights = 2 * (products / rows.shape[1]).sigmoid()
        rows += weights[..., None] * torch.stack(parts).sum(0)[:, None]

    def norm(
        self,
        rows: torch.Tensor,
        weight: torch.Tensor,
        parts: tuple[torch.Tensor, ...] = (),
        products: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `RowGates`."""
        if parts and products is not None:
            self.add(rows, parts, products)
        return F.rms_norm(rows, rows.shape[2:], eps=self._rms_eps) * weight.view(rows.shape[1:])

    def low(self, products: torch.Tensor, num_rows: int) -> torch.Tensor:
        """See `RowGates`."""
        return F.silu(products / num_rows)

    def mean(self, normed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """See `RowGates`."""
        return (gates.view(normed.shape).sigmoid() * normed).mean(1)
