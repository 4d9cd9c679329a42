"""Triton functions that the programs of products have in common: their share of the columns, and their results."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def steps_of(split, steps_per_split, slot, IS_GROUPED: tl.constexpr):
    """(first, end) of a program's steps; tiles that hold nothing, whose slot is below zero, have none."""
    first = split * steps_per_split
    end = first + steps_per_split
    if IS_GROUPED:
        end = tl.where(slot >= 0, end, first)
    return first, end


@triton.jit
def store(sums, out, gate, place, kept, HAS_GATE: tl.constexpr):
    """Store sums, times silu of the gate where there is one (it may be `out` itself)."""
    if HAS_GATE:
        value = tl.load(gate + place, mask=kept, other=0.0)
        small = tl.exp(tl.where(value < 0.0, value, -value))  # does not overflow
        sums = sums * value * (tl.where(value < 0.0, small, 1.0) / (1.0 + small))
    tl.store(out + place, sums, mask=kept)
