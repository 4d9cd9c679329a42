"""Packs matrices and experts for the CPU kernels, into memory or into files.

The compiled module reports how many bytes each destination takes. The caller opens the destination, and the compiled
module packs into it without a call back into Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ballast._core import kernels

OpenFile = Callable[[str, int], kernels.PanelFile | None]
"""Opens the file for panels, given a description of them and their number of bytes. None: they are not kept."""

PROJECTIONS = ("gate", "up", "down")
"""The matrices of experts, in the order in which they are packed."""


@dataclass(frozen=True, slots=True)
class Target:
    """The threads and the instruction set that matrices are packed for."""

    pool: kernels.ThreadPool
    isa: str
    activation_bytes: int | None
    """Bytes per activation with quantized weights; None: their type decides."""

    @property
    def packs(self) -> bool:
        """Whether weights are packed at all. The reference kernels read them in place."""
        return self.isa != "reference"


@dataclass(frozen=True, slots=True)
class Heads:
    """Rows of a matrix: head h owns `num_rows` rows from h * stride + offset."""

    num_heads: int
    num_rows: int
    stride: int
    offset: int = 0
    transposed: bool = False
    """Whether each head is packed transposed."""

    def __str__(self) -> str:
        suffix = " transposed" if self.transposed else ""
        return f"{self.num_heads}x{self.num_rows}/{self.stride}+{self.offset}{suffix}"


def pack_matrix(
    target: Target, matrix: kernels.Matrix, heads: Heads, name: str, open_file: OpenFile | None = None
) -> kernels.Matrix:
    """The heads of a matrix, packed. `open_file`: opens the file that keeps their panels; None: they are not kept.

    Raises RuntimeError if the file is damaged, cannot be read, or has no room.
    """
    file = None
    if open_file is not None and target.packs:
        num_bytes = kernels.packed_nbytes(
            matrix.ggml_type,
            num_heads=heads.num_heads,
            num_rows=heads.num_rows,
            cols=matrix.cols,
            transposed=heads.transposed,
        )
        file = open_file(f"{name} {heads}", num_bytes) if num_bytes > 0 else None
    return kernels.pack(
        target.pool,
        matrix,
        target.isa,
        num_heads=heads.num_heads,
        head_stride=heads.stride,
        row_offset=heads.offset,
        num_rows=heads.num_rows,
        transposed=heads.transposed,
        activation_bytes=target.activation_bytes,
        file=file,
    )


def pack_experts(
    target: Target,
    experts: kernels.Experts,
    names: Mapping[str, str],
    packed: Callable[[str], None],
    open_file: OpenFile | None = None,
) -> kernels.Experts:
    """The experts of a layer, packed as `pack_matrix` packs a matrix.

    `names`: the tensor of each projection. `packed`: called with each projection as soon as its source is not needed.
    """
    if not target.packs:
        return experts
    packing = kernels.ExpertsPacking(experts, target.pool, target.isa, activation_bytes=target.activation_bytes)
    for projection in PROJECTIONS:
        files = []
        if open_file is not None:
            what = f"{names[projection]} {projection} of {experts.num_experts} experts"
            for node, num_bytes in enumerate(packing.nbytes(projection)):
                files.append(open_file(f"{what}, node {node}", num_bytes) if num_bytes > 0 else None)
        packing.pack(projection, files)
        packed(projection)
    return packing.finish()
