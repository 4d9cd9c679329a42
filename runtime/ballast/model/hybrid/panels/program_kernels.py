"""Triton functions that the kernels of products share: what a program computes, and how its results are stored.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(slot, panels_per_slot, panel_size, ROWS: tl.constexpr):
    """(rows, whether a panel has them, where their panels begin) of a program's block of a slot's rows; places are in
    the unit of `panel_size`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    panel = row // 16
    return row, panel < panels_per_slot, (slot.to(tl.int64) * panels_per_slot + panel) * panel_size


@triton.jit
def slot_of_tile(tiles):
    """The slot of a program's tile of grouped tokens; below zero for a tile that holds nothing. `tiles` int32
    [tiles, 3]: a tile's slot, and its bounds in the order of the results."""
    return tl.load(tiles + 3 * tl.program_id(1))


@triton.jit
def results_of_tile(order, tiles, sharing, index):
    """(row of x, row of the result, whether the tile has it) of the `index`th results of a program's tile, one or a
    tensor of them; the first rows where it has none. `sharing` results have one row of x."""
    tile = tiles + 3 * tl.program_id(1)
    place = tl.load(tile + 1) + index
    is_here = place < tl.load(tile + 2)
    result = tl.load(order + place, mask=is_here, other=0)
    return result // sharing, result, is_here


@triton.jit
def steps_of(split, steps_per_split, slot, IS_GROUPED: tl.constexpr):
    """(first, end) of a program's steps over the columns; a tile that holds nothing, whose slot is below zero, has
    none."""
    first = split * steps_per_split
    end = first + steps_per_split
    if IS_GROUPED:
        end = tl.where(slot >= 0, end, first)
    return first, end


@triton.jit
def is_last_to_arrive(counter, num_splits):
    """Whether all other programs that share a block's columns have stored their sums. `counter` counts arrivals; the
    last program sets it to zero again."""
    tl.debug_barrier()
    return tl.atomic_add(counter, 1) == num_splits - 1


@triton.jit
def sum_of_splits(partial, kept, num_splits, split_stride):
    """The sums that all splits have stored, added up in the order of the splits: a result does not depend on which
    program arrives first."""
    total = tl.load(partial, mask=kept, other=0.0, cache_modifier=".cg")
    for split in range(1, num_splits):
        total += tl.load(partial + split * split_stride, mask=kept, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def gated(value, gate):
    """value * silu(gate)."""
    small = tl.exp(tl.where(gate < 0.0, gate, -gate))  # does not overflow
    return value * gate * (tl.where(gate < 0.0, small, 1.0) / (1.0 + small))


@triton.jit
def store(sums, out, gate, place, kept, HAS_GATE: tl.constexpr):
    """Store sums, times silu of the gate where there is one (it may be `out` itself)."""
    if HAS_GATE:
        sums = gated(sums, tl.load(gate + place, mask=kept, other=0.0))
    tl.store(out + place, sums, mask=kept)
