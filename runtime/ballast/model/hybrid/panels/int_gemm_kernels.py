"""Triton kernels that multiply the integer codes of packed matrices with tiles of tokens on tensor cores.

Codes are small integers, which bfloat16 holds exactly, so weights are not rounded: the sum of codes times activations
over 32 (or 16) columns is multiplied by the scale of those columns. operand_kernels.py describes programs and the loads
of their threads.

Triton's built-in operations only: see reduce_kernels.py.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment,var-annotated"
from __future__ import annotations

import triton
import triton.language as tl

from ballast.model.hybrid.panels.bf16_split_kernels import rounded
from ballast.model.hybrid.panels.dequant_kernels import factor_of
from ballast.model.hybrid.panels.operand_kernels import (
    halves_in,
    load_groups,
    pointers_of,
    scales_in,
    weights_in,
    words_in,
)
from ballast.model.hybrid.panels.program_kernels import is_last_to_arrive, sum_of_splits
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous

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
"""Arguments for whose values Triton compiles no separate kernels: all batch sizes and shapes share one."""


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
    """Split x into two bfloat16 terms, and sum both over 32 or 16 columns; groups beyond the columns of x are zeros.

    A group's terms are ordered by line, term, half and byte. The byte order is first, third, second, fourth, because a
    word gives its codes two at a time. Grid: rows of x, steps of 256 columns."""
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    step = tl.program_id(1)
    part = tl.arange(0, 8 * SUBS)[:, None]
    col = part * (32 // SUBS) + tl.arange(0, 32 // SUBS)[None, :]
    value = tl.load(x + row * cols + step * 256 + col, mask=step * 256 + col < cols, other=0.0)
    # Rounding turns a GPU's own NaN into zero, and the lower term would be rounded too.
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
def _by_row(value):
    """A value per row, [thread, row of four], as [rows, 4, 1], to broadcast over sums [rows, 4, 2]."""
    return tl.reshape(tl.permute(tl.reshape(value, (8, 4, 4)), (2, 0, 1)), (32, 4))[:, :, None]


@triton.jit
def _by_token(value):
    """A value per token, [thread, 2], as [rows, 4, 2]."""
    return tl.reshape(tl.broadcast_to(tl.reshape(value, (1, 8, 4, 2)), (4, 8, 4, 2)), (32, 4, 2))


@triton.jit
def _add(
    sums,
    loaded,
    points,
    factor,
    row_terms,
    row_totals,
    group,
    total_stride,
    t,
    LAYOUT: tl.constexpr,
    GROUPS: tl.constexpr,
    EIGHTS: tl.constexpr,
):
    """sums plus the products of the groups `loaded`, a tuple of [rows, 4, 2] over EIGHTS."""
    subs: tl.constexpr = LAYOUT.subs_per_group
    for index in tl.static_range(GROUPS):
        operands = ()
        for eight in tl.static_range(EIGHTS):
            source = row_terms[eight] + group * 64
            upper = tl.load(source + index * 64)
            lower = tl.load(source + (index * 64 + 8))
            operands = operands + ((halves_in(upper), halves_in(lower)),)
        for sub in tl.static_range(subs):
            scale, rest = scales_in(loaded, factor, group, index, sub, LAYOUT, BY_BITS=False)
            parts = ()
            for _ in tl.static_range(EIGHTS):
                parts = parts + (tl.full((32, 8), 0.0, dtype=tl.float32),)
            for portion in tl.static_range(2 // subs):
                word = words_in(loaded, points, group, index, t, sub + portion, LAYOUT)
                weights = weights_in(word, LAYOUT.code_bits, row_terms[0].dtype.element_ty)
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
                    at = ((group + index) * subs + sub) * total_stride
                    sum_x = _by_token(tl.load(row_totals[eight] + at))
                    if LAYOUT.has_minimum:
                        total = tl.fma(sum_x, _by_row(tl.fma(scale, -128.0, rest)), total)
                    else:
                        part = tl.fma(sum_x, -128.0 - LAYOUT.offset, part)
                new_sums = new_sums + (tl.fma(part, _by_row(scale), total),)
            sums = new_sums
    return sums


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
    """Store sums, a tuple of [rows, 4, 2]. If several programs share the columns, the last one to finish adds up the
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
    points,  # int32, of the type's grid, or unused
    scales,  # float32, of each slot's matrix, or unused
    out,  # float32 [tokens * slots, num_rows]
    partial,  # float32 [splits, tokens * slots, num_rows], or unused
    arrived,  # int32, zeros, one per program of a split
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
    HAS_LAST_STEP: tl.constexpr,
):
    """out = x Wᵀ. Grid: blocks of 32 rows, tiles of 8 * EIGHTS tokens, splits of the columns times slots.

    HAS_LAST_STEP: whether the last step has code of its own, after the loop. Otherwise the loop includes it and loads
    its words twice, and the kernel has half as much code."""
    wait_for_previous()
    slot = tl.program_id(2) % num_slots
    split = tl.program_id(2) // num_slots
    thread = tl.arange(0, 32)[:, None]
    g = thread // 4
    t = thread % 4
    panel = tl.minimum(tl.program_id(0) * 2 + g // 4, panels_per_slot - 1)
    begin = (slot.to(tl.int64) * panels_per_slot + panel) * panel_words
    pointers = pointers_of(words, halves, begin, scale_words, g, t)
    factor = factor_of(scales, slot, LAYOUT)
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

    num_groups = cols // 32
    total_stride = num_slots.to(tl.int64) * (token_blocks * 8)
    first = split * steps_per_split
    last = tl.minimum(first + steps_per_split, num_supers * (8 // GROUPS)) - 1
    loaded = load_groups(pointers, first * GROUPS, num_groups, LAYOUT, GROUPS)
    for step in range(first, last + (not HAS_LAST_STEP)):
        next_step = step + 1
        if not HAS_LAST_STEP:
            next_step = tl.minimum(next_step, last)
        following = load_groups(pointers, next_step * GROUPS, num_groups, LAYOUT, GROUPS)
        sums = _add(
            sums, loaded, points, factor, row_terms, row_totals, step * GROUPS, total_stride, t, LAYOUT, GROUPS, EIGHTS
        )
        loaded = following
    if HAS_LAST_STEP:
        sums = _add(
            sums, loaded, points, factor, row_terms, row_totals, last * GROUPS, total_stride, t, LAYOUT, GROUPS, EIGHTS
        )

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
