"""Triton kernels that multiply experts' packed matrices with the tokens that selected them. Each expert is read once
for a tile of a few tokens.

Tensor cores multiply the codes directly (panels/operand_kernels.py). Two columns of a tile are one token: its upper and
its lower terms (bf16_split_kernels.py), so one product computes both. A token's sums are a fixed sequence of
operations, independent of the other tokens.

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
from ballast.model.hybrid.panels.program_kernels import is_last_to_arrive, sum_of_splits, unit_of
from ballast.model.hybrid.shared_kernels.early_kernels import wait_for_previous
from ballast.model.hybrid.shared_kernels.number_kernels import ceil_div
from ballast.model.hybrid.shared_kernels.reduce_kernels import plus, smaller


@triton.jit(do_not_specialize=["num_pairs", "num_experts"])
def group_and_split(
    ids,  # int32 [num_pairs]
    x,  # float32 [num_tokens, cols]
    tiles,  # int32 [num_pairs, TILE + 1]
    arrived,  # int32 [num_pairs, num_counters]
    terms,  # [num_tokens, cols / 32, 64]
    totals,  # float32 [num_tokens, cols / 32, 2]
    num_pairs,
    num_experts,
    num_counters,
    cols,
    PAIRS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Group pairs of token and expert by expert, set counters to zero, and split x into terms.

    Every TILE-th pair of an expert, from its first on, leads a tile: the expert, and its pairs in their order, padded
    with -1. The tiles of the other pairs contain only -1. A group of 32 columns has its upper terms, then its lower
    terms, each in the order of the lines that threads load: a quad of each half, with byte order first, third, second,
    fourth. Totals are those of both terms, one per half. Grid: one program per pair, then for each token steps of 256
    columns."""
    wait_for_previous()
    program = tl.program_id(0)
    if program < num_pairs:
        other = tl.arange(0, PAIRS)
        expert = tl.load(ids + program)
        is_alike = tl.load(ids + other, mask=other < num_pairs, other=-1) == expert
        rank = tl.reduce((is_alike & (other < program)).to(tl.int32), 0, plus)
        leads = (rank % TILE == 0) & (expert >= 0) & (expert < num_experts)
        tile = tiles + program * (TILE + 1)
        tl.store(tile, tl.where(leads, expert, -1))
        member = program
        for index in tl.static_range(TILE):
            tl.store(tile + (index + 1), tl.where(leads & (member < num_pairs), member, -1))
            member = tl.reduce(
                tl.where(is_alike & (other > member) & (other < num_pairs), other, num_pairs), 0, smaller
            )
        for first in range(0, num_counters, 128):
            counter = first + tl.arange(0, 128)
            tl.store(arrived + program * num_counters + counter, 0, mask=counter < num_counters)
    else:
        num_steps = (cols + 255) // 256
        row = ((program - num_pairs) // num_steps).to(tl.int64)
        col = (program - num_pairs) % num_steps * 256 + tl.arange(0, 256)
        value = tl.load(x + row * cols + col, mask=col < cols, other=0.0)
        upper, lower = _terms(value)
        place = terms + row * (cols * 2) + col // 32 * 64 + _place_of(col % 32)
        tl.store(place, upper, mask=col < cols)
        tl.store(place + 32, lower, mask=col < cols)
        total = tl.reduce(tl.reshape(upper + lower, (16, 16)), 1, plus)
        half = (program - num_pairs) % num_steps * 16 + tl.arange(0, 16)
        tl.store(totals + row * (cols // 16) + half, total, mask=half < cols // 16)


@triton.jit
def _terms(value):
    """Values as upper and lower terms."""
    # Rounding turns a GPU's own NaN into zero, and the lower term would be rounded too.
    upper = tl.where(value == value, rounded(value), value)
    return upper, rounded(value - upper)


@triton.jit
def _place_of(col):
    """The index of a group's columns among its terms."""
    return col % 16 // 4 * 8 + col // 16 * 4 + col % 2 * 2 + col % 4 // 2


@triton.jit(
    do_not_specialize=["arrived", "sharing", "panels_per_slot", "steps_per_split", "num_splits", "split_stride"]
)
def grouped_int_gemm(
    terms,  # [rows of x, num_groups, 64], as group_and_split orders them
    totals,  # float32 [rows of x, num_groups, 2]
    words,  # the panels, seen as int32
    halves,  # as float16
    up_words,  # those of the second matrix, or unused, also the next
    up_halves,
    points,  # int32, of the type's grid, or unused
    scales,  # float32, of each slot's matrix, or unused
    up_scales,  # those of the second matrix, or unused
    tiles,  # int32 [tiles, 4 * EIGHTS + 1]
    out,  # float32 [results, num_rows], or with the second matrix terms [results, num_rows / 32, 64]
    out_totals,  # float32 [results, num_rows / 32, 2], or unused
    partial,  # float32 [splits of both matrices, results, num_rows], or unused
    arrived,  # int32 [tiles, blocks of rows], zeros, or unused
    gate_bias,  # float32 [slots, num_rows], of the first matrix, if HAS_BIASES
    up_bias,  # of the second matrix
    alpha,  # of the unit
    limit,
    sharing,
    num_rows,
    num_groups,
    panels_per_slot,
    panel_words,
    scale_words,
    steps_per_split,
    num_splits,
    split_stride,
    LAYOUT: tl.constexpr,
    HAS_UP: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    GROUPS: tl.constexpr,
    EIGHTS: tl.constexpr,
    UNIT: tl.constexpr,
    HAS_BIASES: tl.constexpr,
):
    """out[r] = W x[r // sharing] for the results of each tile; with a second matrix the terms of silu(W x) * (U x), or
    of the unit of both with their biases.

    Grid: blocks of 32 rows, tiles, splits of the columns: those of the first matrix, then those of the second."""
    wait_for_previous()
    tile = tiles + tl.program_id(1) * (4 * EIGHTS + 1)
    slot = tl.load(tile)
    if slot >= 0:
        block = tl.program_id(0)
        split = tl.program_id(2)
        if HAS_UP:  # noqa: SIM102  a constant is no part of a condition on numbers
            if split >= num_splits:
                words = up_words
                halves = up_halves
                scales = up_scales
                split -= num_splits
        thread = tl.arange(0, 32)[:, None]
        g = thread // 4
        t = thread % 4
        panel = tl.minimum(block * 2 + g // 4, panels_per_slot - 1)
        begin = (slot.to(tl.int64) * panels_per_slot + panel) * panel_words
        pointers = pointers_of(words, halves, begin, scale_words, g, t)
        factor = factor_of(scales, slot, LAYOUT)
        row_terms, row_totals, results = _columns(tile, terms, totals, sharing, num_groups, g, t, EIGHTS)
        first = split * steps_per_split
        last = tl.minimum(first + steps_per_split, ceil_div(num_groups, GROUPS)) - 1
        sums = ()
        for _ in tl.static_range(EIGHTS):
            sums = sums + (tl.full((32, 4), 0.0, dtype=tl.float32),)
        loaded = load_groups(pointers, first * GROUPS, num_groups, LAYOUT, GROUPS)
        for step in range(first, last):
            following = load_groups(pointers, (step + 1) * GROUPS, num_groups, LAYOUT, GROUPS)
            sums = _add(
                sums,
                loaded,
                points,
                factor,
                row_terms,
                row_totals,
                step * GROUPS,
                num_groups,
                t,
                LAYOUT,
                GROUPS,
                EIGHTS,
            )
            loaded = following
        sums = _add(
            sums, loaded, points, factor, row_terms, row_totals, last * GROUPS, num_groups, t, LAYOUT, GROUPS, EIGHTS
        )

        row = block * 32 + g * 4 + tl.arange(0, 4)[None, :]
        if IS_SPLIT:
            own = partial + tl.program_id(2).to(tl.int64) * split_stride
            _store(sums, own, results, row, num_rows, EIGHTS)
            counter = arrived + tl.program_id(1) * tl.num_programs(0) + block
            if is_last_to_arrive(counter, tl.num_programs(2)):
                totals_of_splits = ()
                for eight in tl.static_range(EIGHTS):
                    kept = (results[eight] >= 0) & (row < num_rows)
                    source = partial + (results[eight].to(tl.int64) * num_rows + row)
                    total = sum_of_splits(source, kept, num_splits, split_stride)
                    if HAS_UP:
                        up = sum_of_splits(source + num_splits * split_stride, kept, num_splits, split_stride)
                        if HAS_BIASES:
                            of_bias = slot.to(tl.int64) * num_rows + row
                            total += tl.load(gate_bias + of_bias, mask=row < num_rows, other=0.0)
                            up += tl.load(up_bias + of_bias, mask=row < num_rows, other=0.0)
                        total = unit_of(total, up, alpha, limit, UNIT)
                    totals_of_splits = totals_of_splits + (total,)
                if HAS_UP:
                    _store_terms(totals_of_splits, out, out_totals, tile, results, block, num_rows // 32, g, EIGHTS)
                else:
                    _store(totals_of_splits, out, results, row, num_rows, EIGHTS)
        else:
            _store(sums, out, results, row, num_rows, EIGHTS)


@triton.jit
def _columns(tile, terms, totals, sharing, num_groups, g, t, EIGHTS: tl.constexpr):
    """(address of the terms that a thread loads, totals of token t, its result or -1), each a tuple over EIGHTS. For
    results that the tile does not have, it uses the data of the tile's first result; they are not stored."""
    leader = tl.load(tile + 1)
    row_terms = ()
    row_totals = ()
    results = ()
    for eight in tl.static_range(EIGHTS):
        result = tl.load(tile + (1 + eight * 4 + g // 2))
        x_row = (tl.where(result >= 0, result, leader) // sharing).to(tl.int64)
        place = x_row * (num_groups * 64) + (g % 2 * 32 + t * 8 + tl.arange(0, 8)[None, :])
        row_terms = row_terms + (terms + place,)
        result = tl.load(tile + (1 + eight * 4 + t))
        x_row = (tl.where(result >= 0, result, leader) // sharing).to(tl.int64)
        row_totals = row_totals + (totals + x_row * (num_groups * 2),)
        results = results + (result,)
    return row_terms, row_totals, results


@triton.jit
def _add(
    sums,
    loaded,
    points,
    factor,
    row_terms,
    row_totals,
    group,
    num_groups,
    t,
    LAYOUT: tl.constexpr,
    GROUPS: tl.constexpr,
    EIGHTS: tl.constexpr,
):
    """sums plus the products of the groups `loaded`, a tuple of [thread, row of four] over EIGHTS, for token t."""
    subs: tl.constexpr = LAYOUT.subs_per_group
    is_wide: tl.constexpr = LAYOUT.code_bits == 8
    for index in tl.static_range(GROUPS):
        if LAYOUT.is_flat:
            inside = group + index < num_groups
        else:
            inside = True
        operands = ()
        totals = ()
        for eight in tl.static_range(EIGHTS):
            source = row_terms[eight] + group * 64
            operands = operands + (halves_in(tl.load(source + index * 64, mask=inside, other=0.0)),)
            if not is_wide:
                source = row_totals[eight] + group * 2
                total = tl.load(source + index * 2, mask=inside, other=0.0)
                next_total = tl.load(source + (index * 2 + 1), mask=inside, other=0.0)
                if subs == 1:
                    totals = totals + ((total + next_total,),)
                else:
                    totals = totals + ((total, next_total),)
        for sub in tl.static_range(subs):
            scale, rest = scales_in(loaded, factor, group, index, sub, LAYOUT, BY_BITS=True)
            parts = ()
            for _ in tl.static_range(EIGHTS):
                parts = parts + (tl.full((32, 8), 0.0, dtype=tl.float32),)
            for portion in tl.static_range(2 // subs):
                word = words_in(loaded, points, group, index, t, sub + portion, LAYOUT)
                weights = weights_in(word, LAYOUT.code_bits, row_terms[0].dtype.element_ty)
                new_parts = ()
                for eight in tl.static_range(EIGHTS):
                    operand = operands[eight][sub + portion]
                    new_parts = new_parts + (tl.dot(weights, operand, parts[eight], input_precision="ieee"),)
                parts = new_parts
            new_sums = ()
            for eight in tl.static_range(EIGHTS):
                upper, lower = tl.split(tl.reshape(parts[eight], (32, 4, 2)))
                part = tl.reshape(tl.permute(tl.reshape(upper + lower, (4, 8, 4)), (1, 2, 0)), (32, 4))
                total = sums[eight]
                if not is_wide:
                    part = tl.fma(totals[eight][sub], -128.0 - LAYOUT.offset, part)
                    if LAYOUT.has_minimum:
                        total = tl.fma(totals[eight][sub], rest, total)
                new_sums = new_sums + (tl.fma(part, scale, total),)
            sums = new_sums
    return sums


@triton.jit
def _store(sums, out, results, row, num_rows, EIGHTS: tl.constexpr):
    for eight in tl.static_range(EIGHTS):
        place = out + (results[eight].to(tl.int64) * num_rows + row)
        tl.store(place, sums[eight], mask=(results[eight] >= 0) & (row < num_rows))


@triton.jit
def _store_terms(values, out, out_totals, tile, results, group, num_groups, g, EIGHTS: tl.constexpr):
    """Store values [thread, row of four] of token t, whose rows are one group of columns, as terms and totals."""
    for eight in tl.static_range(EIGHTS):
        upper, lower = _terms(values[eight])
        source = out + (results[eight].to(tl.int64) * num_groups + group) * 64
        source += _place_of(g * 4 + tl.arange(0, 4)[None, :])
        tl.store(source, upper, mask=results[eight] >= 0)
        tl.store(source + 32, lower, mask=results[eight] >= 0)
        total = tl.reduce(tl.reshape(upper + lower, (2, 4, 4, 4)), 3, plus)
        total = tl.reduce(total, 1, plus)  # [half, token]
        result = tl.load(tile + (1 + eight * 4 + tl.arange(0, 4)[None, :]))
        place = out_totals + (result.to(tl.int64) * num_groups + group) * 2 + tl.arange(0, 2)[:, None]
        tl.store(place, total, mask=result >= 0)
