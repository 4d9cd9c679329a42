"""The layout of packed weights in memory, the same for CPU and GPU: see csrc/cpu/panel_layout.h."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels

PANEL_ROWS = 16
GROUP_COLS = 32
SUPER_GROUPS = 8
"""Number of groups that share a block scale in formats with 256 weights per block."""

FLOAT_TYPES = frozenset(GgmlType(known.ggml_type) for known in kernels.formats() if known.layout is None)
"""Float types. Their panels are [column][16 rows]."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A `kernels.Grid` in the form that Triton needs, and the offsets of the components of a group of points."""

    weights: int
    """Weights per point."""
    index_bits: int
    sign_bits: int
    high_bytes: int
    scale_log2: int
    sign_plane: int
    high_plane: int


@dataclass(frozen=True, slots=True)
class QuantLayout:
    """A `kernels.QuantLayout` in the form that Triton needs: a compile-time constant of kernels."""

    bits: int
    """Bits per code in memory."""
    subs_per_group: int
    offset: int
    """The offset that is subtracted from a code before multiplication; offsets of tables fit the largest entry."""
    scales: Literal["flat", "powers", "e4m3", "nested", "nibbles", "block", "odd nibbles", "odd in codes"]
    has_minimum: bool
    step_words: tuple[int, ...] | None
    """The values of the 16 codes with the offset added: unsigned bytes, four per word. None if codes are the numbers
    themselves."""
    code_bits: int
    """Bits per code during multiplication."""
    scale_stride: int
    group_bytes: int
    """Bytes of the codes of 32 columns of 16 rows."""
    grid: Grid | None
    """The grid that codes index, if any."""
    has_trits: bool
    """Whether five codes share a byte, as base-3 digits."""

    @property
    def is_flat(self) -> bool:
        """Whether each group has its own scales, and shares none with other groups of a super-block."""
        return self.scales in ("flat", "powers", "e4m3")

    @property
    def code_loads(self) -> int:
        """Loads per thread for the codes of a group. This and the next two describe `operand_kernels.load_groups`."""
        if self.grid is not None:
            return 8 // self.grid.weights + (self.grid.sign_bits > 0) + (self.grid.high_bytes > 0)
        return {2: 2, 3: 3, 4: 1, 5: 2, 6: 3, 8: 2}[self.bits]

    @property
    def loads_per_group(self) -> int:
        if self.is_flat:
            return self.code_loads + self.subs_per_group + self.has_minimum
        if self.scales in ("block", "odd in codes"):
            return self.code_loads
        if self.scales == "odd nibbles":
            return self.code_loads + 1
        return self.code_loads + self.subs_per_group * (2 if self.scales == "nested" and self.has_minimum else 1)

    @property
    def loads_before_groups(self) -> int:
        """Loads per thread for scales that groups share."""
        return 0 if self.is_flat else 1 + self.has_minimum

    def scale_bytes(self, cols: int) -> int:
        """Bytes of a panel's scales, which precede its codes."""
        records = cols // (GROUP_COLS if self.is_flat else GROUP_COLS * SUPER_GROUPS)
        return (records * self.scale_stride + 63) // 64 * 64


def _constant(layout: kernels.QuantLayout) -> QuantLayout:
    most = _largest(layout)
    offset = layout.offset if most is None else 1 << most.bit_length()
    return QuantLayout(
        bits=layout.bits,
        subs_per_group=layout.subs_per_group,
        offset=offset,
        scales=layout.scales,
        has_minimum=layout.has_minimum,
        step_words=None if layout.table is None else _words(step + offset for step in layout.table),
        code_bits=layout.bits if most is None else offset.bit_length(),
        scale_stride=layout.scale_stride,
        group_bytes=layout.group_bytes,
        grid=None if layout.grid is None else _grid(layout.grid),
        has_trits=layout.has_trits,
    )


def _largest(layout: kernels.QuantLayout) -> int | None:
    """The largest absolute value of a code; None if the codes are the values."""
    if layout.table is not None:
        return max(abs(step) for step in layout.table)
    if layout.grid is not None:
        return int(np.abs(layout.grid.points).max()) + (layout.grid.sign_bits == 0)
    return None


def _grid(grid: kernels.Grid) -> Grid:
    weights = grid.points.shape[1]
    sign_plane = PANEL_ROWS * GROUP_COLS // weights
    high_plane = sign_plane + (4 * PANEL_ROWS if grid.sign_bits else 0)
    return Grid(weights, grid.index_bits, grid.sign_bits, grid.high_bytes, grid.scale_log2, sign_plane, high_plane)


@cache
def points_on(kind: GgmlType, device: torch.device) -> torch.Tensor | None:
    """The points of a type's grid in device memory, int32 words of four weights: magnitudes, or for grids without signs
    weights with the offset added. None if codes do not index a grid."""
    layout = next(known.layout for known in kernels.formats() if known.ggml_type == kind)
    if layout is None or layout.grid is None:
        return None
    added = LAYOUTS[kind].offset + 1 if layout.grid.sign_bits == 0 else 0
    weights = (layout.grid.points.astype(np.int16) + added).astype(np.uint8)
    return torch.from_numpy(weights.reshape(-1).view(np.int32)).to(device)


def _words(numbers: Iterable[int]) -> tuple[int, ...]:
    return struct.unpack("<4i", bytes(numbers))


LAYOUTS: Mapping[GgmlType, QuantLayout] = {
    GgmlType(known.ggml_type): _constant(known.layout) for known in kernels.formats() if known.layout is not None
}
"""The layouts of the quantised types."""
