"""Triton functions that read packed weights (csrc/cpu/panel_layout.h): the scales and the codes of some groups of rows.

Rows and groups may be either axis of a tile: row pointers and groups come as they are to be broadcast. What a format
looks like is known when a kernel is compiled, by the constants of products.decoding.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scales_of(
    row_halves,
    row_codes,
    group,
    half: tl.constexpr,
    inside,
    SUBS: tl.constexpr,
    OFFSET: tl.constexpr,
    IS_FLAT: tl.constexpr,
    IS_NIBBLES: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    IS_TABLE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
):
    """(scale, rest) float32 of columns 16 * half … + 15 of groups: a weight is scale * code + rest, or of the code's
    step where codes index a table."""
    if IS_FLAT:
        block = group * (SCALE_STRIDE // 2)
        scale = tl.load(row_halves + block, mask=inside, other=0.0).to(tl.float32)
    else:
        block = group // 8 * (SCALE_STRIDE // 2)
        sub = 2 * block + 32 * (1 + HAS_MINIMUM) + (group % 8 * SUBS + half * (SUBS - 1)) * 16
        scale = tl.load(row_halves + block, mask=inside, other=0.0).to(tl.float32)
        code = tl.load(row_codes + sub, mask=inside, other=0).to(tl.int32)
        if IS_NIBBLES:
            scale = scale * (code & 15).to(tl.float32)
        else:
            scale = scale * code.to(tl.float32)
    if HAS_MINIMUM:
        rest = tl.load(row_halves + block + 16, mask=inside, other=0.0).to(tl.float32)
        if IS_NIBBLES:
            rest = -rest * ((code >> 4) & 15).to(tl.float32)
        elif not IS_FLAT:
            rest = -rest * tl.load(row_codes + sub + 8 * SUBS * 16, mask=inside, other=0).to(tl.float32)
    else:
        rest = scale * -OFFSET
    return scale, rest


@triton.jit
def words_of(row_words, at, line, half: tl.constexpr, inside, BITS: tl.constexpr):
    """The codes of columns 16 * half + 4 * line … + 3 of the groups whose first word is `at`: one in the low bits of
    each byte, and anything above it."""
    if BITS == 8:
        word = tl.load(row_words + (at + (line + 4 * half) * 16), mask=inside, other=0)
    elif BITS <= 3:
        word = tl.load(row_words + (at + half * 16), mask=inside, other=0) >> (2 * line)
    else:
        word = tl.load(row_words + (at + line * 16), mask=inside, other=0) >> (4 * half)
    if BITS == 6:
        high = tl.load(row_words + (at + 64 + half * 16), mask=inside, other=0) >> (2 * line)
        word = (word & 0x0F0F0F0F) | (high & 0x03030303) << 4
    if BITS == 5:
        high = tl.load(row_words + (at + 64), mask=inside, other=0) >> (4 * half + line)
        word = (word & 0x0F0F0F0F) | (high & 0x01010101) << 4
    if BITS == 3:
        high = tl.load(row_words + (at + 32), mask=inside, other=0) >> (4 * half + line)
        word = (word & 0x03030303) | (high & 0x01010101) << 2
    return word


@triton.jit
def weight_of(code, scale, rest, steps, IS_TABLE: tl.constexpr):
    if IS_TABLE:
        value = tl.load(steps + code)
    else:
        value = code.to(tl.float32)
    return scale * value + rest
