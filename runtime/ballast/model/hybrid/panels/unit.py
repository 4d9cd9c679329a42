"""What networks compute of the products with gate and up, on a device: the unit, and the biases of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.families.architecture import ClampedSilu, ClampedSwiglu, Unit

SILU, CLAMPED_SWIGLU, CLAMPED_SILU = range(3)
"""The units, as kernels name them."""


def kernel_unit(unit: Unit | None) -> tuple[int, float, float]:
    """The unit, its alpha, or the limit of a clamped silu's gate, and its limit for kernels; numbers that a unit does
    not have are 1."""
    if isinstance(unit, ClampedSwiglu):
        return CLAMPED_SWIGLU, unit.alpha, unit.limit
    return (SILU, 1.0, 1.0) if unit is None else (CLAMPED_SILU, unit.gate_limit, unit.limit)


@dataclass(frozen=True, slots=True)
class ExpertUnit:
    """The unit of some experts, and the biases of their products, float32 in device memory, by slot."""

    unit: Unit | None = None
    """None: silu(g) · u."""
    gate_bias: torch.Tensor | None = None  # [slots, I]
    up_bias: torch.Tensor | None = None  # [slots, I]
    down_bias: torch.Tensor | None = None  # [slots, D]

    def gate_and_up(self, anything: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float, float]:
        """The arguments of kernels: biases of gate and up, or `anything`; alpha and limit."""
        _, alpha, limit = kernel_unit(self.unit)
        if self.gate_bias is None or self.up_bias is None:
            return anything, anything, alpha, limit
        return self.gate_bias, self.up_bias, alpha, limit

    @property
    def constants(self) -> dict[str, Any]:
        """The constants of kernels that compute hidden values."""
        return {"UNIT": kernel_unit(self.unit)[0], "HAS_BIASES": self.gate_bias is not None}

    @property
    def is_plain(self) -> bool:
        """Whether hidden values are silu(g) · u, without biases."""
        return self.unit is None and self.gate_bias is None


PLAIN = ExpertUnit()


@dataclass(frozen=True, slots=True)
class HostUnit:
    """The unit of a part's experts and their biases in host memory; None without any."""

    unit: Unit | None = None
    gate_bias: NDArray[np.float32] | None = None  # [E, I']
    up_bias: NDArray[np.float32] | None = None  # [E, I']
    down_bias: NDArray[np.float32] | None = None  # [E, D], of the first part

    @staticmethod
    def of_part(
        clamped: Sequence[float | None],
        biases: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]] | None,
        first_row: int,
        num_rows: int,
    ) -> HostUnit:
        """Those of rows first_row … first_row + num_rows - 1 of gate and up. The arguments are `kernels.Experts`'s."""
        unit: Unit | None = None
        if clamped:
            alpha, limit, *gate_limit = clamped
            assert limit is not None
            unit = ClampedSilu(limit, gate_limit != [limit]) if alpha is None else ClampedSwiglu(alpha, limit)
        if biases is None:
            return HostUnit(unit)
        gate, up, down = biases
        rows = slice(first_row, first_row + num_rows)
        return HostUnit(unit, gate[:, rows], up[:, rows], down if first_row == 0 else None)

    def on(self, device: torch.device, experts: Sequence[int] | slice = slice(None)) -> ExpertUnit:
        """The unit of these experts, with copies of their biases in device memory."""
        places = experts if isinstance(experts, slice) else list(experts)

        def send(bias: NDArray[np.float32] | None) -> torch.Tensor | None:
            return None if bias is None else torch.from_numpy(np.ascontiguousarray(bias[places])).to(device)

        return ExpertUnit(self.unit, send(self.gate_bias), send(self.up_bias), send(self.down_bias))


SILU_ALONE = HostUnit()
"""silu(g) · u, without biases."""
