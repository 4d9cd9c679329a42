"""Triton functions that decode packed weights (csrc/cpu/panel_layout.h): the scales and codes of groups of columns.

Rows and groups may be either axis of a tile: callers pass them in broadcastable shapes. A format is known when a kernel
is compiled: LAYOUT is its `layout.QuantLayout`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def lines_of(words, halves, codes, points, factor, begin, lane):
    """(row_words, row_halves, row_codes, points, factor): the begin of the rows in each view of the panels, `begin`
    words into the panels, the points of the type's grid, and the rows' `factor_of`."""
    return words + (begin + lane), halves + (begin * 2 + lane), codes + (begin * 4 + lane), points, factor


@triton.jit
def factor_of(scales, slot, LAYOUT: tl.constexpr):
    """The factor of scales in small floats: the scale of the slot's matrix, times 2^8 / 2. Their bits are read as
    half-precision bits (2^8), and steps are counted in halves (1 / 2). Slots below zero are empty."""
    if LAYOUT.scales == "e4m3":
        factor = tl.load(scales + tl.maximum(slot, 0)) * 128.0
    else:
        factor = 1.0
    return factor


@triton.jit
def scales_of(lines, scale_words, group, half: tl.constexpr, inside, LAYOUT: tl.constexpr):
    """(scale, rest) float32 of columns 16 * half … + 15 of groups: a weight is scale * code + rest."""
    _, row_halves, row_codes, _, factor = lines
    super_group = group // 8
    index = group % 8
    subs: tl.constexpr = LAYOUT.subs_per_group
    if LAYOUT.scales == "flat":
        block = (super_group * 8 + index) * (LAYOUT.scale_stride // 2)
        scale = tl.load(row_halves + block, mask=inside, other=0.0).to(tl.float32)
    elif LAYOUT.scales == "powers":
        block = (super_group * 8 + index) * LAYOUT.scale_stride
        scale = power_of_two(tl.load(row_codes + block, mask=inside, other=0).to(tl.int32) & 255)
    elif LAYOUT.scales == "e4m3":
        byte = (super_group * 8 + index) * LAYOUT.scale_stride + half * 16
        scale = small_float(tl.load(row_codes + byte, mask=inside, other=0).to(tl.int32)) * factor
    elif LAYOUT.grid is not None:
        scale = tl.load(row_halves + super_group * (LAYOUT.scale_stride // 2), mask=inside, other=0.0).to(tl.float32)
        if LAYOUT.scales == "odd nibbles":
            byte = super_group * LAYOUT.scale_stride + 32 + (index if subs == 2 else index // 2) * 16
            code = tl.load(row_codes + byte, mask=inside, other=0).to(tl.int32) >> (
                4 * half if subs == 2 else 4 * (index % 2)
            )
            scale = times_odd(scale, code, LAYOUT)
        else:
            signs, high = _signs_and_high(lines, scale_words, group, inside, LAYOUT)
            scale = times_odd(scale, odd_in(signs, high, LAYOUT), LAYOUT)
    elif LAYOUT.scales == "block":
        scale = tl.load(row_halves + super_group * (LAYOUT.scale_stride // 2), mask=inside, other=0.0).to(tl.float32)
    else:
        block = super_group * (LAYOUT.scale_stride // 2)
        sub = 2 * block + 32 * (1 + LAYOUT.has_minimum) + (index * subs + half * (subs - 1)) * 16
        scale = tl.load(row_halves + block, mask=inside, other=0.0).to(tl.float32)
        code = tl.load(row_codes + sub, mask=inside, other=0).to(tl.int32)
        if LAYOUT.scales == "nibbles":
            scale = scale * (code & 15).to(tl.float32)
        else:
            scale = scale * code.to(tl.float32)
    if LAYOUT.has_minimum:
        rest = tl.load(row_halves + block + 16, mask=inside, other=0.0).to(tl.float32)
        if LAYOUT.scales == "nibbles":
            rest = -rest * ((code >> 4) & 15).to(tl.float32)
        elif LAYOUT.scales == "nested":
            rest = -rest * tl.load(row_codes + sub + 8 * subs * 16, mask=inside, other=0).to(tl.float32)
    else:
        rest = scale * -LAYOUT.offset
    return scale, rest


@triton.jit
def power_of_two(exponent):
    """2 to the power of exponent - 128, as the bits of a float; the two smallest are subnormal."""
    return tl.where(exponent < 2, 0x00200000 << (exponent & 1), (exponent - 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def small_float(byte):
    """The float in the low seven bits of a word (four exponent bits, three mantissa bits), times 2^-8: these are the
    highest bits of a half-precision number."""
    return ((byte & 127) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def words_of(lines, scale_words, group, line, half: tl.constexpr, inside, LAYOUT: tl.constexpr):
    """The codes of columns 16 * half + 4 * line … + 3 of groups, one in the low `code_bits` of each byte. The bits
    above are undefined."""
    row_words, _, _, points, _ = lines
    at = scale_words + group * (LAYOUT.group_bytes // 4)
    if LAYOUT.grid is not None:
        first = at if LAYOUT.grid.weights == 8 else at + half * 16
        numbers = tl.load(row_words + first, mask=inside, other=0)
        signs, high = _signs_and_high(lines, scale_words, group, inside, LAYOUT)
        word = point_words(points, numbers, signs, high, line, half, LAYOUT)
    elif LAYOUT.has_trits:
        quad = group % 8 * 8 + (4 * half + line)
        at = scale_words + group // 8 * (LAYOUT.group_bytes * 2)
        word = trits_in(tl.load(row_words + (at + quad // 5 * 16), mask=inside, other=0), quad)
    elif LAYOUT.bits == 8:
        word = tl.load(row_words + (at + (line + 4 * half) * 16), mask=inside, other=0)
    elif LAYOUT.bits <= 3:
        word = tl.load(row_words + (at + half * 16), mask=inside, other=0) >> (2 * line)
    else:
        word = tl.load(row_words + (at + line * 16), mask=inside, other=0) >> (4 * half)
    if LAYOUT.bits == 6:
        high = tl.load(row_words + (at + 64 + half * 16), mask=inside, other=0) >> (2 * line)
        word = (word & 0x0F0F0F0F) | (high & 0x03030303) << 4
    if LAYOUT.bits == 5:
        high = tl.load(row_words + (at + 64), mask=inside, other=0) >> (4 * half + line)
        word = (word & 0x0F0F0F0F) | (high & 0x01010101) << 4
    if LAYOUT.bits == 3:
        high = tl.load(row_words + (at + 32), mask=inside, other=0) >> (4 * half + line)
        word = (word & 0x03030303) | (high & 0x01010101) << 2
    if LAYOUT.step_words is not None:
        word = steps_in(word, LAYOUT)
    return word


@triton.jit
def _signs_and_high(lines, scale_words, group, inside, LAYOUT: tl.constexpr):
    """A group's sign word and the high bits of its point numbers; 0 if the format has none."""
    row_words, row_halves, row_codes, _, _ = lines
    at = scale_words + group * (LAYOUT.group_bytes // 4)
    signs = 0
    high = 0
    if LAYOUT.grid.sign_bits > 0:
        signs = tl.load(row_words + (at + LAYOUT.grid.sign_plane // 4), mask=inside, other=0)
    if LAYOUT.grid.high_bytes == 1:
        high = tl.load(row_codes + (at * 4 + LAYOUT.grid.high_plane), mask=inside, other=0).to(tl.int32) & 255
    if LAYOUT.grid.high_bytes == 2:
        halves = tl.load(row_halves + (at * 2 + LAYOUT.grid.high_plane // 2), mask=inside, other=0.0)
        high = bits_of_halves(halves)
    return signs, high


@triton.jit
def bits_of_halves(halves):
    """The bits of half-precision numbers as integers."""
    return halves.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def odd_in(signs, high, LAYOUT: tl.constexpr):
    """The number n of a group's scale 2 n + 1, from the top bits of its signs, or from the first three nibbles."""
    if LAYOUT.grid.sign_bits == 0:
        number = (high >> 3 & 1) | (high >> 6 & 2) | (high >> 9 & 4)
    else:
        number = (signs >> 7 & 1) | (signs >> 14 & 2) | (signs >> 21 & 4) | (signs >> 28 & 8)
    return number


@triton.jit
def times_odd(scale, code, LAYOUT: tl.constexpr):
    """A block's scale times the scale of a sub-block, whose n is the low four bits of `code`."""
    return scale * (2.0**-LAYOUT.grid.scale_log2) * ((code & 15) * 2 + 1).to(tl.float32)


@triton.jit
def point_words(points, numbers, signs, high, line, half: tl.constexpr, LAYOUT: tl.constexpr):
    """The codes of columns 16 * half + 4 * line … + 3 of a group of points; `numbers` is the word of their low bits."""
    if LAYOUT.grid.weights == 8:
        place = 2 * half + line // 2
        number = numbers >> (8 * place) & 255
    else:
        place = 4 * half + line
        number = numbers >> (8 * line) & 255
    if LAYOUT.grid.high_bytes == 1:
        bits: tl.constexpr = LAYOUT.grid.index_bits - 8
        number = number | (high >> (bits * place) & ((1 << bits) - 1)) << 8
    if LAYOUT.grid.high_bytes == 2:
        number = number | (high >> (4 * place) & 7) << 8
    if LAYOUT.grid.index_bits == 9 and LAYOUT.grid.sign_bits == 7:
        number = number | (signs >> (8 * place + 7) & 1) << 8
    if LAYOUT.grid.weights == 8:
        number = number * 2 + line % 2
    word = tl.load(points + number)
    if LAYOUT.grid.sign_bits == 0:
        if LAYOUT.scales == "odd in codes":
            is_down = high >> 15 & 1
        else:
            is_down = high >> (4 * place + 3) & 1
        word = word - is_down * 0x02020202
    else:
        eight = signs >> (16 * half + line // 2 * 8) & 255
        if LAYOUT.grid.sign_bits == 7:
            eight = eight & 127
            count = eight ^ eight >> 4
            count = count ^ count >> 2
            count = count ^ count >> 1
            eight = eight | (count & 1) << 7
        four = eight >> (line % 2 * 4) & 15
        negative = (four * 0x00204081 & 0x01010101) * 255
        word = LAYOUT.offset * 0x01010101 + (word & ~negative) - (word & negative)
    return word


@triton.jit
def trits_in(word, quad):
    """The codes of quads of a super-block, from the words that contain them: one base-3 digit per byte. Four are
    computed together, with two per multiplication: no carry crosses from one to the other."""
    power = bytes_of(0x1B090301, 0x51, 0x5550 + quad % 5)  # power of 3: the byte of 1, 3, 9, 27 and 81 at that index
    first_and_third = ((word & 0x00FF00FF) * power & 0x00FF00FF) * 3
    second_and_fourth = ((word >> 8 & 0x00FF00FF) * power & 0x00FF00FF) * 3
    return bytes_of(first_and_third, second_and_fourth, 0x7351)


@triton.jit
def steps_in(word, LAYOUT: tl.constexpr):
    """The table's step for the code in the low four bits of each byte. The lookup is in registers: a table in memory
    would cost one load per weight, and prevent words from being copied ahead."""
    pairs = word & 0x07070707
    pairs = pairs | (pairs >> 4)
    places = bytes_of(pairs, 0, 0x4420)
    low = bytes_of(LAYOUT.step_words[0], LAYOUT.step_words[1], places)
    high = bytes_of(LAYOUT.step_words[2], LAYOUT.step_words[3], places)
    is_high = bytes_of(word << 4, 0, 0xBA98)
    return (high & is_high) | (low & ~is_high)


@triton.jit
def bytes_of(first, second, places):
    """Four of eight bytes, of `first` and then of `second`, selected by the low four digits of `places`; a digit of 8
    or more fills the byte with the sign of byte digit - 8 (PTX ISA, prmt)."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [first, second, places], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def codes_of(lines, scale_words, group, line, half: tl.constexpr, inside, LAYOUT: tl.constexpr):
    """(words, scale, rest) of columns 16 * half + 4 * line … + 3 of groups: the input of `weight_of`. Codes begin
    `scale_words` words into a row's panel."""
    scale, rest = scales_of(lines, scale_words, group, half, inside, LAYOUT)
    word = words_of(lines, scale_words, group, line, half, inside, LAYOUT)
    return word, scale, rest


@triton.jit
def weight_of(word, byte: tl.constexpr, scale, rest, LAYOUT: tl.constexpr):
    """The weights whose codes are in the low bits of a byte."""
    code = (word >> (8 * byte)) & ((1 << LAYOUT.code_bits) - 1)
    return scale * code.to(tl.float32) + rest
