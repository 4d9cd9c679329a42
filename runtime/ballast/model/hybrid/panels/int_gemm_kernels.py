"""Triton kernels that multiply the integer codes of packed matrices with tiles of tokens on tensor cores.

Codes are small integers, which bfloat16 holds exactly, so weights are not rounded: the sum of codes times activations
over 32 (or 16) columns is multiplied by the scale of those columns. A program is one warp with 32 rows. Each thread
loads what its share of the tensor cores' operands and results needs, so threads exchange nothing (PTX ISA,
mma.m16n8k16: thread 4 g + t has rows g and g + 8 and token g of the operands, four columns by t, and tokens 2 t and
2 t + 1 of the results). The first axis of a tile is a warp's threads.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,var-annotated"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.bf16_split_kernels import rounded
from ballast.model.hybrid.panels.dequant_kernels import lines_of, scales_of, words_of
from ballast.model.hybrid.panels.program_kernels import is_last_to_arrive, sum_of_splits

_RUN_TIME = [
    "num_tokens",
    "num_slots",
    "panels_per_slot",
    "num_supers",
    "token_blocks",
    "steps_per_split",
    "num_splits",
    "split_stride",
]
"""Arguments whose values Triton compiles no kernels for: batch sizes and shapes share one."""


@triton.jit(do_not_specialize=["token_blocks"])
def split_columns(
    x,  # float32 [tokens * slots, cols]
    terms,  # [tokens * slots, num_supers * 8 groups, 64]
    totals,  # float32 [num_supers * 8 * SUBS, slots, token_blocks * 8], zeros beyond the tokens
    cols,
    num_slots,
    num_supers,
    token_blocks,
    SUBS: tl.constexpr,
):
    """Split x into two bfloat16 terms, and sum both over 32 or 16 columns; groups that x does not have are zeros.

    A group's terms are ordered by line, term, half and byte: the first byte, the third, the second, the fourth, since a
    word gives its codes two at a time. Grid: rows of x, steps of 256 columns."""
    row = tl.program_id(0).to(tl.int64)
    step = tl.program_id(1)
    part = tl.arange(0, 8 * SUBS)[:, None]
    col = part * (32 // SUBS) + tl.arange(0, 32 // SUBS)[None, :]
    value = tl.load(x + row * cols + step * 256 + col, mask=step * 256 + col < cols, other=0.0)
    # Rounding makes a zero of a GPU's own NaN, and the lower term would be rounded too.
    upper = tl.where(value == value, rounded(value), value)
    lower = rounded(value - upper)
    place = col // 32 * 64 + col % 16 // 4 * 16 + col % 32 // 16 * 4 + col % 2 * 2 + col % 4 // 2
    place = terms + (row * num_supers + step) * 512 + place
    tl.store(place, upper)
    tl.store(place + 8, lower)
    total = tl.reduce(upper + lower, 1, tl.standard._sum_combine)
    part = (step * 8 * SUBS + tl.arange(0, 8 * SUBS)).to(tl.int64)
    token = row // num_slots
    row_totals = totals + (part * num_slots + row % num_slots) * (token_blocks * 8)
    tl.store(row_totals + token, total)
    if (token + 1) * num_slots == tl.num_programs(0):
        beyond = token + 1 + tl.arange(0, 8)
        nothing = tl.full((8 * SUBS, 8), 0.0, dtype=tl.float32)
        tl.store(row_totals[:, None] + beyond[None, :], nothing, mask=(beyond < token_blocks * 8)[None, :])


@triton.jit
def _pairs(bits, TERM: tl.constexpr):
    """The bfloat16 numbers in the halves of words, as the operands' type."""
    low = bits.to(tl.int16).to(tl.bfloat16, bitcast=True).to(TERM)
    high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True).to(TERM)
    return low, high


@triton.jit
def _bytes(word, BITS: tl.constexpr, TERM: tl.constexpr):
    """(first, third) of the codes in the bytes of words, read as bits below an exponent: codes of up to 7 bits come out
    128 too large, those of 8 bits 128 too small, which takes their offset away."""
    if BITS == 8:
        low, high = _pairs((word & 0x007F007F) | 0x43004300, TERM)
        low_sign, high_sign = _pairs((~word & 0x00800080) | 0x43004300, TERM)
        return low - low_sign, high - high_sign
    return _pairs((word & (((1 << BITS) - 1) * 0x00010001)) | 0x43004300, TERM)


@triton.jit
def _weights(word, BITS: tl.constexpr, TERM: tl.constexpr):
    """Codes of words [thread, row of four] as an operand [32 rows, 16 columns]; see `_bytes`."""
    first, third = _bytes(word, BITS, TERM)
    second, fourth = _bytes(word >> 8, BITS, TERM)
    codes = tl.join(tl.join(first, second), tl.join(third, fourth))
    return tl.reshape(tl.permute(tl.reshape(codes, (8, 4, 4, 2, 2)), (2, 0, 1, 3, 4)), (32, 16))


@triton.jit
def _halves(terms):
    """Terms [thread, (half, byte)] as two operands [16 columns, 8 tokens], one a half."""
    first, second = tl.split(tl.permute(tl.reshape(terms, (8, 4, 2, 4)), (1, 3, 0, 2)))
    return tl.reshape(first, (16, 8)), tl.reshape(second, (16, 8))


@triton.jit
def _by_row(value):
    """A value of each row, [thread, row of four], as [rows, 4, 1], to broadcast over sums [rows, 4, 2]."""
    return tl.reshape(tl.permute(tl.reshape(value, (8, 4, 4)), (2, 0, 1)), (32, 4))[:, :, None]


@triton.jit
def _by_token(value):
    """A value of each token, [thread, 2], as [rows, 4, 2]."""
    return tl.reshape(tl.broadcast_to(tl.reshape(value, (1, 8, 4, 2)), (4, 8, 4, 2)), (32, 4, 2))


@triton.jit
def _finish(
    sums,
    first_token,
    slot,
    split,
    out,
    partial,
    arrived,
    num_tokens,
    num_slots,
    num_rows,
    num_splits,
    split_stride,
    EIGHTS: tl.constexpr,
):
    """Store sums, a tuple of [rows, 4, 2]. Of several programs that share the columns, the last to arrive adds up the
    sums of all."""
    row = tl.program_id(0) * 32 + tl.arange(0, 8)[None, :, None, None] * 4 + tl.arange(0, 4)[:, None, None, None]
    column = tl.arange(0, 4)[None, None, :, None] * 2 + tl.arange(0, 2)[None, None, None, :]
    own = out
    if num_splits > 1:
        own = partial + split * split_stride
    places = ()
    kept = ()
    for eight in tl.static_range(EIGHTS):
        token = first_token + eight * 8 + column
        places = places + ((token.to(tl.int64) * num_slots + slot) * num_rows + row,)
        kept = kept + ((row < num_rows) & (token < num_tokens),)
        tl.store(own + places[eight], tl.reshape(sums[eight], (4, 8, 4, 2)), mask=kept[eight])
    if num_splits > 1:
        counter = arrived + (tl.program_id(1) * num_slots + slot) * tl.num_programs(0) + tl.program_id(0)
        if is_last_to_arrive(counter, num_splits):
            for eight in tl.static_range(EIGHTS):
                total = sum_of_splits(partial + places[eight], kept[eight], num_splits, split_stride)
                tl.store(out + places[eight], total, mask=kept[eight])
            tl.store(counter, 0)


@triton.jit(do_not_specialize=_RUN_TIME)
def int_gemm(
    terms,  # as split_columns orders them
    totals,
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    out,  # float32 [tokens * slots, num_rows]
    partial,  # float32 [splits, tokens * slots, num_rows], or anything
    arrived,  # int32, zeros, one a program of a split
    num_tokens,
    num_slots,
    num_rows,
    cols,
    panels_per_slot,
    panel_words,
    scale_words,
    num_supers,
    token_blocks,
    steps_per_split,
    num_splits,
    split_stride,
    LAYOUT: tl.constexpr,
    GROUPS: tl.constexpr,
    EIGHTS: tl.constexpr,
):
    """Grid: blocks of 32 rows, tiles of 8 * EIGHTS tokens, splits of the columns times slots."""
    term = terms.dtype.element_ty
    bits: tl.constexpr = LAYOUT.bits
    subs: tl.constexpr = LAYOUT.subs_per_group
    slot = tl.program_id(2) % num_slots
    split = tl.program_id(2) // num_slots
    thread = tl.arange(0, 32)[:, None]
    g = thread // 4
    t = thread % 4
    panel = tl.minimum(tl.program_id(0) * 2 + g // 4, panels_per_slot - 1)
    lane = g % 4 * 4 + tl.arange(0, 4)[None, :]
    begin = (slot.to(tl.int64) * panels_per_slot + panel) * panel_words
    row_words, row_halves, row_codes = lines_of(words, halves, codes, begin, lane)
    first_token = tl.program_id(1) * (8 * EIGHTS)
    row_terms = ()
    row_totals = ()
    sums = ()
    for eight in tl.static_range(EIGHTS):
        token = tl.minimum(first_token + eight * 8 + g, num_tokens - 1)
        place = (token.to(tl.int64) * num_slots + slot) * (num_supers * 512) + t * 16
        row_terms = row_terms + (terms + (place + tl.arange(0, 8)[None, :]),)
        column = tl.minimum(first_token // 8 + eight, token_blocks - 1) * 8 + t * 2
        row_totals = row_totals + (totals + (slot * (token_blocks * 8) + column + tl.arange(0, 2)[None, :]),)
        sums = sums + (tl.full((32, 4, 2), 0.0, dtype=tl.float32),)

    first = split * steps_per_split
    for step in range(first, tl.minimum(first + steps_per_split, num_supers * (8 // GROUPS))):
        for index in tl.static_range(GROUPS):
            group = step * GROUPS + index
            if LAYOUT.scales == "flat":
                inside = group < cols // 32
            else:
                inside = True
            operands = ()
            for eight in tl.static_range(EIGHTS):
                source = row_terms[eight] + group * 64
                operands = operands + ((_halves(tl.load(source)), _halves(tl.load(source + 8))),)
            for sub in tl.static_range(subs):
                eighth = step % (8 // GROUPS) * GROUPS + index
                scale, rest = scales_of(row_halves, row_codes, step // (8 // GROUPS), eighth, sub, inside, LAYOUT)
                parts = ()
                for _ in tl.static_range(EIGHTS):
                    parts = parts + (tl.full((32, 8), 0.0, dtype=tl.float32),)
                for portion in tl.static_range(2 // subs):
                    at = scale_words + group * (bits * 16)
                    word = words_of(row_words, at, t, sub + portion, inside, LAYOUT)
                    weights = _weights(word, LAYOUT.code_bits, term)
                    new_parts = ()
                    for eight in tl.static_range(EIGHTS):
                        uppers, lowers = operands[eight]
                        part = tl.dot(weights, lowers[sub + portion], parts[eight], input_precision="ieee")
                        part = tl.dot(weights, uppers[sub + portion], part, input_precision="ieee")
                        new_parts = new_parts + (part,)
                    parts = new_parts
                new_sums = ()
                for eight in tl.static_range(EIGHTS):
                    part = tl.reshape(parts[eight], (32, 4, 2))
                    total = sums[eight]
                    if LAYOUT.code_bits < 8:
                        at = ((group * subs + sub) * num_slots).to(tl.int64) * (token_blocks * 8)
                        sum_x = _by_token(tl.load(row_totals[eight] + at))
                        if LAYOUT.has_minimum:
                            total += sum_x * _by_row(rest - 128.0 * scale)
                        else:
                            part += sum_x * (-128.0 - LAYOUT.offset)
                    new_sums = new_sums + (total + part * _by_row(scale),)
                sums = new_sums

    _finish(
        sums,
        first_token,
        slot,
        split,
        out,
        partial,
        arrived,
        num_tokens,
        num_slots,
        num_rows,
        num_splits,
        split_stride,
        EIGHTS,
    )
