"""Launches the kernels that store the states which the rows of a step leave."""

from __future__ import annotations

from typing import Any

import torch

from ballast.model.hybrid.recurrent.state_rows import StateRows


def launch_for_rows(
    kernel: Any, given: tuple[torch.Tensor, ...], rows: StateRows, sizes: dict[str, int], num_parts: int = 1
) -> None:
    """Launch the kernel for `num_parts` parts of each row. Its arguments: `given`, the tables of rows and of chunks,
    the first row, HAS_CHUNKS, and `sizes`, which are constants."""
    given = (*given, rows.begins, rows.before, rows.after)
    if rows.num_single:
        # Any pointers, because there are no chunks.
        none = rows.begins, rows.begins, rows.begins
        kernel[rows.num_single, num_parts](*given, *none, 0, HAS_CHUNKS=False, **sizes)
    if rows.chunks is not None:
        chunks = rows.chunks.of_row, rows.chunks.ends, rows.chunks.slots
        num_rows = len(rows.before) - rows.num_single
        kernel[num_rows, num_parts](*given, *chunks, rows.num_single, HAS_CHUNKS=True, **sizes)
