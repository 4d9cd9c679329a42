"""Triton functions that round numbers to e4m3 (4 bits of exponent, 3 of mantissa), on GPUs of any age.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.shared_kernels.reduce_kernels import larger, plus


@triton.jit
def codes_of(numbers):
    """The codes uint8 of float32 numbers of at most 448, rounded to nearest, ties to even."""
    exponent = tl.maximum((numbers.to(tl.int32, bitcast=True) >> 23) & 255, 121)  # that of 2^-6, the smallest normal
    # Adding 1.5 times 2^20 of the number's power of two leaves three bits after the first.
    rounder = (((exponent + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)
    rounded = (numbers + rounder) - rounder
    # Half precision has one more bit of exponent: codes are its upper bits, without that one.
    half = (rounded * 0.00390625).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    return (((half >> 8) & 0x80) | ((half >> 7) & 0x7F)).to(tl.uint8)


@triton.jit
def scale_of(largest):
    """(scale, its inverse) of numbers of at most `largest`, a float32 of at most 448 * 2^7: the smallest power of two,
    from 2^-24, that leaves at most 448."""
    exponent = (largest.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23  # one more, if the mantissa is above 448's
    exponent = tl.maximum(exponent - 8, 103)
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def nan_of(numbers):
    """NaN if one of the numbers is NaN, else 0."""
    return tl.reduce(numbers * 0.0, 0, plus)


@triton.jit
def store_short(numbers, out, scale_out, mask):
    """Write numbers that share a scale, 0 where `mask` is false, to codes `out` and their scale to `scale_out`."""
    scale, inverse = scale_of(tl.reduce(tl.abs(numbers), 0, larger))
    tl.store(out, codes_of(numbers * inverse), mask=mask)
    tl.store(scale_out, scale + nan_of(numbers))


@triton.jit
def store_short_parts(numbers, out, scale_out, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """As `store_short`, for PARTS times WIDTH numbers, each part with a scale."""
    parts = tl.reshape(numbers, (PARTS, WIDTH))
    scale, inverse = scale_of(tl.reduce(tl.abs(parts), 1, larger))
    part = tl.arange(0, PARTS)
    place = part[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(out + place, codes_of(parts * inverse[:, None]))
    tl.store(scale_out + part, scale + tl.reduce(parts * 0.0, 1, plus))


@triton.jit
def store_short_head(
    first,  # [PAIRS], the first half of the rotated entries
    second,  # the second half
    rest,  # [REST], the entries that are not rotated; ignored if not HAS_REST
    out,
    scale_out,
    pair,  # indices of `first`
    of_rest,  # of `rest`
    is_pair,
    is_rest,
    ROPE: tl.constexpr,
    HAS_REST: tl.constexpr,
):
    """As `store_short`, for a head in parts."""
    largest = tl.maximum(tl.reduce(tl.abs(first), 0, larger), tl.reduce(tl.abs(second), 0, larger))
    unknown = nan_of(first) + nan_of(second)
    if HAS_REST:
        largest = tl.maximum(largest, tl.reduce(tl.abs(rest), 0, larger))
        unknown += nan_of(rest)
    scale, inverse = scale_of(largest)
    tl.store(out + pair, codes_of(first * inverse), mask=is_pair)
    tl.store(out + ROPE // 2 + pair, codes_of(second * inverse), mask=is_pair)
    if HAS_REST:
        tl.store(out + ROPE + of_rest, codes_of(rest * inverse), mask=is_rest)
    tl.store(scale_out, scale + unknown)
