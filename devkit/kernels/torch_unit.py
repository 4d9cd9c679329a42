"""What networks compute of gate and up, in torch's operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ballast.families.architecture import ClampedSwiglu, Unit


def unit_of(gate: torch.Tensor, up: torch.Tensor, unit: Unit | None) -> torch.Tensor:
    """The unit of gate and up; None: silu(gate) * up."""
    if unit is None:
        return F.silu(gate) * up
    bounded = up.clamp(-unit.limit, unit.limit)
    if isinstance(unit, ClampedSwiglu):
        clamped = gate.clamp(max=unit.limit)
        return clamped * torch.sigmoid(unit.alpha * clamped) * (bounded + 1)
    if unit.limits_input:
        return F.silu(gate.clamp(max=unit.limit)) * bounded
    return F.silu(gate).clamp(max=unit.limit) * bounded
