"""Packed matrices of one shape in one block of memory, in the views that kernels read, with their scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from gguf import GGMLQuantizationType as GgmlType
from numpy.typing import NDArray

from ballast.model.hybrid.panels.layout import FLOAT_TYPES, LAYOUTS, PANEL_ROWS, points_on
from ballast.model.tensors import SCALED_TYPES

_FLOATS = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16, GgmlType.BF16: torch.bfloat16}


@dataclass(frozen=True)
class PanelStack:
    """The panels of one matrix [rows, cols] per expert (or head), expert after expert. `packed` are the bytes, uint8,
    in device memory, or in host memory that is registered with CUDA. Raises ValueError for the wrong number of bytes or
    of scales."""

    packed: torch.Tensor
    ggml_type: GgmlType
    num_experts: int
    rows: int
    cols: int
    scales: torch.Tensor | None = None
    """Factors of each matrix's products, float32 [num_experts] in the memory of the device that computes, for
    SCALED_TYPES (see `scales_on`); None for other types."""
    views: tuple[torch.Tensor, ...] = field(init=False, repr=False)
    """The bytes as the float type, or as 32-bit words, half-precision numbers and bytes."""

    def __post_init__(self) -> None:
        expected_bytes = self.num_experts * self.panels_per_expert * self.panel_bytes
        if self.packed.numel() != expected_bytes:
            raise ValueError(
                f"{self.num_experts} matrices {self.ggml_type.name} [{self.rows}, {self.cols}] are packed into "
                f"{expected_bytes} bytes; got {self.packed.numel()}"
            )
        num_scales = self.num_experts if self.ggml_type in SCALED_TYPES else 0
        if num_scales != (0 if self.scales is None else self.scales.numel()):
            raise ValueError(
                f"{self.num_experts} matrices {self.ggml_type.name} have {num_scales} scales; got {self.scales}"
            )
        flat = self.packed.reshape(-1)
        kinds: tuple[torch.dtype, ...] = (torch.int32, torch.float16, torch.int8)
        if self.ggml_type in FLOAT_TYPES:
            kinds = (_FLOATS[self.ggml_type],)
        object.__setattr__(self, "views", tuple(flat.view(kind) for kind in kinds))

    def operands(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """`views`, followed by the points of a quantised type's grid in the memory of `device` (or a placeholder), and
        `scales` (or a placeholder)."""
        if self.ggml_type in FLOAT_TYPES:
            return self.views
        points, anything = points_on(self.ggml_type, device), self.views[0]
        return (
            *self.views,
            anything if points is None else points,
            anything if self.scales is None else self.scales,
        )

    @property
    def data_ptr(self) -> int:
        return self.packed.data_ptr()

    @property
    def panels_per_expert(self) -> int:
        return -(-self.rows // PANEL_ROWS)

    @property
    def panel_bytes(self) -> int:
        if self.ggml_type in FLOAT_TYPES:
            return (PANEL_ROWS * self.cols * _FLOATS[self.ggml_type].itemsize + 63) // 64 * 64
        layout = LAYOUTS[self.ggml_type]
        return layout.scale_bytes(self.cols) + self.cols // 32 * layout.group_bytes


def scales_on(
    device: torch.device,
    scales: NDArray[np.float32],
    kind: GgmlType,
    num_experts: int,
    chosen: Sequence[int] | slice = slice(None),
) -> torch.Tensor | None:
    """`PanelStack.scales` of the `chosen` ones among `num_experts` matrices of `kind`, in device memory. `scales` are
    those of a `kernels.Matrix`: none, one for all, or one per matrix. Raises ValueError if the type has none."""
    if kind not in SCALED_TYPES:
        if scales.size:
            raise ValueError(f"a matrix of {kind.name} has scales {scales}; GPU kernels support none for it")
        return None
    of_all = np.broadcast_to(scales if scales.size else np.ones(1, np.float32), num_experts)
    places = chosen if isinstance(chosen, slice) else list(chosen)  # a tuple would be one index over several axes
    return torch.from_numpy(of_all[places].copy()).to(device)
