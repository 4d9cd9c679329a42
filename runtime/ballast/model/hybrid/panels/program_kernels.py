"""Triton functions that the kernels of products share: the rows and tiles of a program, and the store of its results.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(slot, panels_per_slot, panel_size, ROWS: tl.constexpr):
    """(rows, whether a panel has them, begin of their panels) of a program's block of a slot's rows; offsets are in the
    unit of `panel_size`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    panel = row // 16
    return row, panel < panels_per_slot, (slot.to(tl.int64) * panels_per_slot + panel) * panel_size


@triton.jit
def slot_of_tile(tiles):
    """The slot of a program's tile of grouped tokens; negative for an empty tile. `tiles` int32 [tiles, 3]: a tile's
    slot, and its bounds in the order of the results."""
    return tl.load(tiles + 3 * tl.program_id(1))


@triton.jit
def results_of_tile(order, tiles, sharing, index):
    """(row of x, row of the result, whether the tile has it) of the `index`th results of a program's tile, a scalar or
    a tensor; the first rows for results that the tile does not have. `sharing` results have one row of x."""
    tile = tiles + 3 * tl.program_id(1)
    place = tl.load(tile + 1) + index
    is_here = place < tl.load(tile + 2)
    result = tl.load(order + place, mask=is_here, other=0)
    return result // sharing, result, is_here


@triton.jit
def steps_of(split, steps_per_split, slot, IS_GROUPED: tl.constexpr):
    """(first, end) of a program's steps over the columns; an empty tile, whose slot is negative, has none."""
    first = split * steps_per_split
    end = first + steps_per_split
    if IS_GROUPED:
        end = tl.where(slot >= 0, end, first)
    return first, end


@triton.jit
def is_last_to_arrive(counter, num_splits):
    """Whether all other programs that share a block's columns have stored their sums. `counter` counts finished
    programs; the last program resets it to zero."""
    tl.debug_barrier()
    return tl.atomic_add(counter, 1) == num_splits - 1


@triton.jit
def sum_of_splits(partial, kept, num_splits, split_stride):
    """The stored sums of all splits, added in the order of the splits: a result does not depend on the order in which
    programs finish."""
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
def unit_of(gate, up, alpha, limit, UNIT: tl.constexpr):
    """What a network computes of gate and up; see `panels/unit.py`. NaN stays NaN."""
    if UNIT == 0:
        value = gated(up, gate)
    else:
        bounded = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        if UNIT == 1:
            clamped = tl.where(gate > limit, limit, gate)
            # silu(alpha g) / alpha
            value = gated(bounded + 1.0, clamped * alpha) / alpha
        else:
            share = gated(1.0, gate)
            value = tl.where(share > alpha, alpha, share) * bounded
    return value


@triton.jit
def store(sums, out, gate, place, kept, HAS_GATE: tl.constexpr):
    """Store sums, times silu of the gate if there is one (it may be `out` itself)."""
    if HAS_GATE:
        sums = gated(sums, tl.load(gate + place, mask=kept, other=0.0))
    tl.store(out + place, sums, mask=kept)
