"""Triton functions that load packed weights before their use, and convert their codes to operands of tensor cores.

A program is one warp with 32 rows. Each thread loads the data that its part of the operands and results needs, so
threads exchange no data (PTX ISA, mma.m16n8k16: thread 4 g + t has rows g and g + 8 and token g of the operands, four
columns by t, and tokens 2 t and 2 t + 1 of the results). The first axis of a tile is a warp's threads; a thread has
rows 4 g … 4 g + 3, whose words are adjacent in memory.

Loaded data stays in registers, in its memory format, while the previous columns are multiplied: it is a tuple of words
and scales, which `words_in` and `scales_in` decode.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,no-redef"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.dequant_kernels import (
    bits_of_halves,
    bytes_of,
    odd_in,
    point_words,
    power_of_two,
    small_float,
    steps_in,
    times_odd,
    trits_in,
)


@triton.jit
def pointers_of(words, halves, begin, scale_words, g, t):
    """(the thread's lines of codes, lines that all its quads share, scales in bytes and halves, codes in bytes and
    halves, the thread's quad of four) of rows whose panel begins `begin` words into the panels."""
    lane = g % 4 * 4 + tl.arange(0, 4)[None, :]
    codes = words + (begin + scale_words + lane)
    return (
        codes + t * 16,
        codes,
        words + (begin + g % 4),
        halves + (begin * 2 + lane),
        (words + (begin + scale_words + g % 4)),
        halves + ((begin + scale_words) * 2 + lane),
        t,
    )


@triton.jit
def load_groups(pointers, group, num_groups, LAYOUT: tl.constexpr, GROUPS: tl.constexpr):
    """Words of codes and scales of groups `group` … + GROUPS - 1; groups from `num_groups` on are zeros. GROUPS divides
    `group` and, if groups share scales, 8."""
    lines, shared, scales, row_halves, bytes_of_rows, high_halves, t = pointers
    bits: tl.constexpr = LAYOUT.bits
    subs: tl.constexpr = LAYOUT.subs_per_group
    stride: tl.constexpr = LAYOUT.scale_stride
    words: tl.constexpr = LAYOUT.group_bytes // 4
    lines = lines + group * words
    if LAYOUT.has_trits:
        shared = shared + group // 8 * (8 * words)
    else:
        shared = shared + group * words
    loaded = ()
    if LAYOUT.scales == "flat":
        row_halves = row_halves + group * (stride // 2)
    elif LAYOUT.scales == "powers" or LAYOUT.scales == "e4m3":
        scales = scales + group * (stride // 4)
    else:
        row_halves = row_halves + group // 8 * (stride // 2)
        scales = scales + (group // 8 * (stride // 4) + 8 * (1 + LAYOUT.has_minimum) + group % 8 * (subs * 4))
        loaded = loaded + (tl.load(row_halves),)
        if LAYOUT.has_minimum:
            loaded = loaded + (tl.load(row_halves + 16),)
    for index in tl.static_range(GROUPS):
        if LAYOUT.is_flat:
            inside = group + index < num_groups
        else:
            inside = True
        if LAYOUT.grid is not None:
            for line in tl.static_range(8 // LAYOUT.grid.weights):
                loaded = loaded + (tl.load(shared + (index * words + line * 16)),)
            if LAYOUT.grid.sign_bits > 0:
                loaded = loaded + (tl.load(shared + (index * words + LAYOUT.grid.sign_plane // 4)),)
            if LAYOUT.grid.high_bytes == 1:
                of_group = (group + index) * words + LAYOUT.grid.high_plane // 4
                loaded = loaded + (tl.load(bytes_of_rows + of_group),)
            if LAYOUT.grid.high_bytes == 2:
                of_group = (group + index) * (2 * words) + LAYOUT.grid.high_plane // 2
                loaded = loaded + (tl.load(high_halves + of_group),)
        elif LAYOUT.has_trits:
            for half in tl.static_range(2):
                loaded = loaded + (tl.load(shared + _quad(group + index, half, t) // 5 * 16),)
        elif bits >= 4:
            loaded = loaded + (tl.load(lines + index * bits * 16, mask=inside, other=0),)
        if bits == 8 and LAYOUT.grid is None:
            loaded = loaded + (tl.load(lines + (index * bits * 16 + 64), mask=inside, other=0),)
        if bits <= 3 and not LAYOUT.has_trits:
            loaded = loaded + (tl.load(shared + index * bits * 16, mask=inside, other=0),)
            loaded = loaded + (tl.load(shared + (index * bits * 16 + 16), mask=inside, other=0),)
        if bits == 3:
            loaded = loaded + (tl.load(shared + (index * bits * 16 + 32), mask=inside, other=0),)
        if bits == 5 or bits == 6:
            loaded = loaded + (tl.load(shared + (index * bits * 16 + 64), mask=inside, other=0),)
        if bits == 6:
            loaded = loaded + (tl.load(shared + (index * bits * 16 + 80), mask=inside, other=0),)
        if LAYOUT.scales == "flat":
            loaded = loaded + (tl.load(row_halves + index * (stride // 2), mask=inside, other=0.0),)
            if LAYOUT.has_minimum:
                loaded = loaded + (tl.load(row_halves + (index * (stride // 2) + 16), mask=inside, other=0.0),)
        elif LAYOUT.scales == "powers" or LAYOUT.scales == "e4m3":
            for sub in tl.static_range(subs):
                loaded = loaded + (tl.load(scales + (index * (stride // 4) + sub * 4), mask=inside, other=0),)
        elif LAYOUT.scales == "odd nibbles":
            of_group = (group + index) % 8 // (2 // subs) * 4 - group % 8 * (subs * 4)
            loaded = loaded + (tl.load(scales + of_group),)
        elif LAYOUT.scales != "block" and LAYOUT.scales != "odd in codes":
            for sub in tl.static_range(subs):
                loaded = loaded + (tl.load(scales + (index * subs + sub) * 4),)
                if LAYOUT.has_minimum and LAYOUT.scales == "nested":
                    loaded = loaded + (tl.load(scales + ((index * subs + sub) * 4 + 32 * subs)),)
    return loaded


@triton.jit
def words_in(loaded, points, group, index: tl.constexpr, t, half: tl.constexpr, LAYOUT: tl.constexpr):
    """The codes of columns 16 * half + 4 * t … + 3 of the `index`th group, in the format of `words_of`."""
    at: tl.constexpr = LAYOUT.loads_before_groups + index * LAYOUT.loads_per_group
    if LAYOUT.grid is not None:
        signs, high = _signs_and_high(loaded, at, LAYOUT)
        first: tl.constexpr = 0 if LAYOUT.grid.weights == 8 else half
        word = point_words(points, loaded[at + first], signs, high, t, half, LAYOUT)
    elif LAYOUT.has_trits:
        word = trits_in(loaded[at + half], _quad(group + index, half, t))
    elif LAYOUT.bits == 8:
        word = loaded[at + half]
    elif LAYOUT.bits <= 3:
        word = loaded[at + half] >> (2 * t)
    else:
        word = loaded[at] >> (4 * half)
    if LAYOUT.bits == 6:
        word = (word & 0x0F0F0F0F) | ((loaded[at + 1 + half] >> (2 * t)) & 0x03030303) << 4
    if LAYOUT.bits == 5:
        word = (word & 0x0F0F0F0F) | ((loaded[at + 1] >> (4 * half + t)) & 0x01010101) << 4
    if LAYOUT.bits == 3:
        word = (word & 0x03030303) | ((loaded[at + 2] >> (4 * half + t)) & 0x01010101) << 2
    if LAYOUT.step_words is not None:
        word = steps_in(word, LAYOUT)
    return word


@triton.jit
def _quad(group, half: tl.constexpr, t):
    """A thread's quad of a half of a group, counted from the first quad of the group's super-block."""
    return group % 8 * 8 + (4 * half + t)


@triton.jit
def _signs_and_high(loaded, at: tl.constexpr, LAYOUT: tl.constexpr):
    """For a group of points whose words begin at `loaded[at]`: sign words, and the high bits of point numbers; 0 if the
    format has none."""
    signs = 0
    high = 0
    after: tl.constexpr = at + 8 // LAYOUT.grid.weights
    if LAYOUT.grid.sign_bits > 0:
        signs = loaded[after]
    if LAYOUT.grid.high_bytes == 1:
        high = loaded[after + 1] >> (8 * tl.arange(0, 4)[None, :]) & 255
    if LAYOUT.grid.high_bytes == 2:
        high = bits_of_halves(loaded[after])
    return signs, high


@triton.jit
def scales_in(
    loaded, factor, group, index: tl.constexpr, sub: tl.constexpr, LAYOUT: tl.constexpr, BY_BITS: tl.constexpr
):
    """(scale, rest) float32 [thread, row of four] of the `sub`th part of the `index`th group's columns: a weight is
    scale * (code - offset), or scale * code + rest if there is a minimum. `factor` is the matrix's `factor_of`.
    BY_BITS: see `_times_bytes`."""
    at: tl.constexpr = LAYOUT.loads_before_groups + index * LAYOUT.loads_per_group + LAYOUT.code_loads
    rest = 0.0
    if LAYOUT.scales == "flat":
        scale = loaded[at].to(tl.float32)
        if LAYOUT.has_minimum:
            rest = loaded[at + 1].to(tl.float32)
    elif LAYOUT.scales == "powers":
        scale = power_of_two((loaded[at] >> (8 * tl.arange(0, 4)[None, :])) & 255)
    elif LAYOUT.scales == "e4m3":
        scale = small_float(loaded[at + sub] >> (8 * tl.arange(0, 4)[None, :])) * factor
    elif LAYOUT.scales == "block":
        scale = loaded[0].to(tl.float32)
    elif LAYOUT.scales == "odd nibbles":
        nibble = 4 * sub if LAYOUT.subs_per_group == 2 else (group + index) % 2 * 4
        scale = times_odd(loaded[0].to(tl.float32), loaded[at] >> (8 * tl.arange(0, 4)[None, :] + nibble), LAYOUT)
    elif LAYOUT.scales == "odd in codes":
        signs, high = _signs_and_high(loaded, at - LAYOUT.code_loads, LAYOUT)
        scale = times_odd(loaded[0].to(tl.float32), odd_in(signs, high, LAYOUT), LAYOUT)
    else:
        scale = loaded[0].to(tl.float32)
        if LAYOUT.scales == "nibbles":
            rest = _times_bytes(
                -loaded[1].to(tl.float32), (loaded[at + sub] >> 4) & 0x0F0F0F0F, IS_SIGNED=False, BY_BITS=BY_BITS
            )
            scale = _times_bytes(scale, loaded[at + sub] & 0x0F0F0F0F, IS_SIGNED=False, BY_BITS=BY_BITS)
        elif LAYOUT.has_minimum:
            rest = _times_bytes(-loaded[1].to(tl.float32), loaded[at + 2 * sub + 1], IS_SIGNED=False, BY_BITS=BY_BITS)
            scale = _times_bytes(scale, loaded[at + 2 * sub], IS_SIGNED=False, BY_BITS=BY_BITS)
        else:
            scale = _times_bytes(scale, loaded[at + sub], IS_SIGNED=True, BY_BITS=BY_BITS)
    return scale, rest


@triton.jit
def _times_bytes(scale, word, IS_SIGNED: tl.constexpr, BY_BITS: tl.constexpr):
    """A scale in half precision times the bytes of a word, exactly: [thread, row of four]. Unsigned ones are below 128.

    BY_BITS: bytes become the low bits of the float 2^23, so that no integer is converted. On an H200, this is faster
    for experts (benchmarks/hybrid/resident_experts.py), and slower for dense products (panel_linear.py there)."""
    row = tl.arange(0, 4)[None, :]
    if BY_BITS:
        signs: tl.constexpr = -0x7F7F7F80 if IS_SIGNED else 0
        number = bytes_of(word ^ signs, 0x4B000000, 0x7440 + row).to(tl.float32, bitcast=True)  # 2^23 + byte
        if IS_SIGNED:  # scale times 2^23 + 128 would be rounded
            product = scale * (number - (2.0**23 + 128.0))
        else:
            product = tl.fma(scale, number, scale * -(2.0**23))
    else:
        product = scale * ((word << (24 - 8 * row)) >> 24).to(tl.float32)
    return product


@triton.jit
def weights_in(word, BITS: tl.constexpr, TERM: tl.constexpr):
    """Codes of words [thread, row of four] as an operand [32 rows, 16 columns]; see `_bytes`."""
    first, third = _bytes(word, BITS, TERM)
    second, fourth = _bytes(word >> 8, BITS, TERM)
    codes = tl.join(tl.join(first, second), tl.join(third, fourth))
    return tl.reshape(tl.permute(tl.reshape(codes, (8, 4, 4, 2, 2)), (2, 0, 1, 3, 4)), (32, 16))


@triton.jit
def halves_in(terms):
    """Terms [thread, (half, byte)] as two operands [16 columns, 8 tokens], one per half."""
    first, second = tl.split(tl.permute(tl.reshape(terms, (8, 4, 2, 4)), (1, 3, 0, 2)))
    return tl.reshape(first, (16, 8)), tl.reshape(second, (16, 8))


@triton.jit
def _bytes(word, BITS: tl.constexpr, TERM: tl.constexpr):
    """(first, third) of the codes in the bytes of words, read as bits below an exponent. Codes of up to 7 bits become
    128 too large; codes of 8 bits become 128 too small, which subtracts their offset."""
    if BITS == 8:
        low, high = _pairs(_exponent_over(word, 7), TERM)
        low_sign, high_sign = _pairs((~word & 0x00800080) | 0x43004300, TERM)
        return low - low_sign, high - high_sign
    return _pairs(_exponent_over(word, BITS), TERM)


@triton.jit
def _pairs(bits, TERM: tl.constexpr):
    """The bfloat16 numbers in the halves of words, as the operands' type."""
    low = bits.to(tl.int16).to(tl.bfloat16, bitcast=True).to(TERM)
    high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True).to(TERM)
    return low, high


@triton.jit
def _exponent_over(word, BITS: tl.constexpr):
    """The low BITS of each half of words, below the exponent of 128 (PTX ISA, lop3: table 0xEA is a & b | c). The
    compiler itself would use two instructions for two constants."""
    if BITS == 2:
        asm: tl.constexpr = "lop3.b32 $0, $1, 0x00030003, 0x43004300, 0xEA;"
    elif BITS == 3:
        asm: tl.constexpr = "lop3.b32 $0, $1, 0x00070007, 0x43004300, 0xEA;"
    elif BITS == 4:
        asm: tl.constexpr = "lop3.b32 $0, $1, 0x000F000F, 0x43004300, 0xEA;"
    elif BITS == 5:
        asm: tl.constexpr = "lop3.b32 $0, $1, 0x001F001F, 0x43004300, 0xEA;"
    elif BITS == 6:
        asm: tl.constexpr = "lop3.b32 $0, $1, 0x003F003F, 0x43004300, 0xEA;"
    else:
        asm: tl.constexpr = "lop3.b32 $0, $1, 0x007F007F, 0x43004300, 0xEA;"
    return tl.inline_asm_elementwise(asm, "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1)
