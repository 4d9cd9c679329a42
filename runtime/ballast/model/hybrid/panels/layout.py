"""How packed weights lie in memory, as csrc/cpu/panel_layout.h lays them out for CPU and GPU alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gguf import GGMLQuantizationType as GgmlType

PANEL_ROWS = 16
GROUP_COLS = 32
SUPER_GROUPS = 8
"""Groups that share a block scale in the formats of 256 weights a block."""

FLOAT_TYPES = frozenset({GgmlType.F32, GgmlType.F16, GgmlType.BF16})
"""Their panels are [column][16 rows]."""


@dataclass(frozen=True, slots=True)
class QuantLayout:
    """A weight is scale * (code - offset), with a minimum added (flat) or subtracted (others). Where codes index a
    table, they are first replaced by what stands there."""

    bits: int
    """Of a code in memory."""
    subs_per_group: int
    """Scales in 32 columns."""
    offset: int
    scales: Literal["flat", "nested", "nibbles"]
    """flat: a half-precision scale a group; nested: times a byte a sub-block; nibbles: scale and minimum in the halves
    of that byte."""
    has_minimum: bool
    is_table: bool = False
    code_bits: int = field(init=False)
    """Of a code that is multiplied."""
    scale_stride: int = field(init=False)
    """Bytes of the scales of a group (flat) or of eight. A field: Triton tells compiled kernels apart by these."""

    def __post_init__(self) -> None:
        halves = 2 * PANEL_ROWS * (1 + self.has_minimum)
        subs = SUPER_GROUPS * self.subs_per_group * PANEL_ROWS
        scales = {"flat": 0, "nibbles": subs, "nested": subs * (1 + self.has_minimum)}[self.scales]
        object.__setattr__(self, "code_bits", 8 if self.is_table else self.bits)
        object.__setattr__(self, "scale_stride", halves + scales)

    @property
    def group_bytes(self) -> int:
        """Codes of 32 columns of 16 rows."""
        return self.bits * GROUP_COLS * PANEL_ROWS // 8

    def scale_bytes(self, cols: int) -> int:
        """Bytes of a panel before its codes."""
        records = cols // (GROUP_COLS if self.scales == "flat" else GROUP_COLS * SUPER_GROUPS)
        return (records * self.scale_stride + 63) // 64 * 64


LAYOUTS: Mapping[GgmlType, QuantLayout] = {
    GgmlType.Q4_0: QuantLayout(4, 1, 8, "flat", False),
    GgmlType.Q4_1: QuantLayout(4, 1, 0, "flat", True),
    GgmlType.Q5_0: QuantLayout(5, 1, 16, "flat", False),
    GgmlType.Q5_1: QuantLayout(5, 1, 0, "flat", True),
    GgmlType.Q8_0: QuantLayout(8, 1, 128, "flat", False),
    GgmlType.Q2_K: QuantLayout(2, 2, 0, "nibbles", True),
    GgmlType.Q3_K: QuantLayout(3, 2, 4, "nested", False),
    GgmlType.Q4_K: QuantLayout(4, 1, 0, "nested", True),
    GgmlType.Q5_K: QuantLayout(5, 1, 0, "nested", True),
    GgmlType.Q6_K: QuantLayout(6, 2, 32, "nested", False),
    GgmlType.IQ4_NL: QuantLayout(4, 1, 128, "flat", False, is_table=True),
    GgmlType.IQ4_XS: QuantLayout(4, 1, 128, "nested", False, is_table=True),
}

IQ4_STEPS = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)
"""The table of IQ4_NL and IQ4_XS, 128 added: bytes without a sign."""
