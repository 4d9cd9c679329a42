"""Triton kernels that multiply packed weights as they lie, decoded in registers, by tiles of tokens on tensor cores.

A program takes some panels of one slot (a head, or an expert) and a tile of tokens, and walks a share of the columns.
The order of its sums depends on the matrix alone, so a token's result does not depend on the other tokens.

A float32 number goes to the tensor cores as two bfloat16 terms, the number rounded and what that left: three products
for one, without the two small terms'. bfloat16 has float32's range, so nothing needs a scale. Triton's interpreter
multiplies no bfloat16: terms are kept as float32 there, and kernels take the type that they find.

Triton's built-in operations only: its own library of kernels (tl.zeros, tl.cdiv) is compiled when it is imported, and
cannot be interpreted then.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rounded(value):
    """The nearest number that bfloat16 has, as float32."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def split_terms(
    x,  # float32 [num_rows, cols]
    terms,  # [2, num_rows, room]
    num_rows,
    cols,
    room,
    LINES: tl.constexpr,
    STEP_COLS: tl.constexpr,
):
    """x as two terms, its columns in the order in which `quantized_tiles` takes them: of a step first those of every
    word's first code, then of its second. LINES = 0 keeps the order."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, STEP_COLS)
    if LINES > 0:
        piece = place // LINES
        line = place % LINES
        col = line // 4 * 32 + piece // 4 * 16 + line % 4 * 4 + piece % 4
    else:
        col = place
    start = tl.program_id(1) * STEP_COLS
    value = tl.load(x + row * cols + start + col, mask=start + col < cols, other=0.0)
    upper = _rounded(value)
    tl.store(terms + row * room + start + place, upper)
    tl.store(terms + (num_rows + row) * room + start + place, value - upper)


@triton.jit
def _multiply(sums, weight, terms, lower_offset, has_token):
    """sums [ROWS, BLOCK_T] + weight [ROWS, K] · x, read as terms [K, BLOCK_T]."""
    term = terms.dtype.element_ty
    upper = _rounded(weight)
    lower = (weight - upper).to(term)
    upper = upper.to(term)
    upper_x = tl.load(terms, mask=has_token[None, :], other=0.0)
    lower_x = tl.load(terms + lower_offset, mask=has_token[None, :], other=0.0)
    sums = tl.dot(lower, upper_x, sums, input_precision="ieee")
    sums = tl.dot(upper, lower_x, sums, input_precision="ieee")
    return tl.dot(upper, upper_x, sums, input_precision="ieee")


@triton.jit
def _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED: tl.constexpr, BLOCK_T: tl.constexpr):
    """(slot, row of x, row of the result, which of them there are) of the program's tokens. Grouped: `tiles`
    [tiles, 3] holds a tile's slot and bounds in `order`; `sharing` results have one row of x. Otherwise slots are
    heads, of which every token has all."""
    if IS_GROUPED:
        tile = tiles + 3 * tl.program_id(1)
        slot = tl.load(tile)
        place = tl.load(tile + 1) + tl.arange(0, BLOCK_T)
        has_token = place < tl.load(tile + 2)
        result = tl.load(order + place, mask=has_token, other=0).to(tl.int64)
        x_row = result // sharing
    else:
        slot = tl.program_id(2) % num_slots
        token = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
        has_token = token < num_tokens
        result = token.to(tl.int64) * num_slots + slot
        x_row = result
    return slot, x_row, result, has_token


@triton.jit
def _finish(sums, out, gate, result, has_token, row, has_row, num_rows, HAS_GATE: tl.constexpr):
    """Store sums [ROWS, BLOCK_T], times silu of the gate where there is one (it may be `out` itself)."""
    kept = has_row[:, None] & has_token[None, :]
    place = result[None, :] * num_rows + row[:, None]
    if HAS_GATE:
        value = tl.load(gate + place, mask=kept, other=0.0)
        small = tl.exp(tl.where(value < 0.0, value, -value))  # does not overflow
        sums = sums * value * (tl.where(value < 0.0, small, 1.0) / (1.0 + small))
    tl.store(out + place, sums, mask=kept)


@triton.jit
def quantized_tiles(
    terms,  # [2, x_rows, room], as split_terms orders them
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    steps,  # float32 [16], of formats whose codes index a table
    out,  # float32 [splits, results, num_rows]
    gate,  # float32 [results, num_rows], or anything
    order,  # int32, and
    tiles,  # int32 [tiles, 3], of grouped tokens, or anything
    num_tokens,
    num_slots,
    sharing,
    num_rows,
    cols,
    room,
    lower_offset,  # from a term to its lower
    panels_per_slot,
    panel_bytes,
    scale_bytes,
    steps_per_split,
    split_stride,
    BITS: tl.constexpr,
    SUBS: tl.constexpr,
    OFFSET: tl.constexpr,
    IS_FLAT: tl.constexpr,
    IS_NIBBLES: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    IS_TABLE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Grid: blocks of rows, tiles of tokens, splits of the columns times slots where tokens are not grouped."""
    slot, x_row, result, has_token = _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED, BLOCK_T)
    if IS_GROUPED:
        split = tl.program_id(2)
    else:
        split = tl.program_id(2) // num_slots
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    panel = row // 16
    lane = row % 16
    has_row = panel < panels_per_slot
    begin = (slot.to(tl.int64) * panels_per_slot + panel) * panel_bytes
    row_words = words + (begin // 4 + lane)[:, None]
    row_halves = halves + (begin // 2 + lane)[:, None]
    row_codes = codes + (begin + lane)[:, None]

    index = tl.arange(0, GROUPS * 4)
    line = index % 4
    row_terms = terms + x_row[None, :] * room + index[:, None]
    num_groups = cols // 32
    sums = tl.full((ROWS, BLOCK_T), 0.0, dtype=tl.float32)
    first = split * steps_per_split
    last = first + steps_per_split
    if IS_GROUPED:
        last = tl.where(slot >= 0, last, first)
    for step in range(first, last):
        group = step * GROUPS + index // 4
        has_group = group < num_groups
        inside = has_row[:, None] & has_group[None, :]
        at = scale_bytes // 4 + group * (BITS * 16)
        if BITS >= 4 and BITS <= 6:
            nibbles = tl.load(row_words + (at + line * 16)[None, :], mask=inside, other=0)
        if BITS == 5:
            tops = tl.load(row_words + (at + 64)[None, :], mask=inside, other=0)
        if BITS == 3:
            tops = tl.load(row_words + (at + 32)[None, :], mask=inside, other=0)
        for half in tl.static_range(2):
            # --- scales of the 16 columns ---
            if IS_FLAT:
                record = group * (SCALE_STRIDE // 2)
                scale = tl.load(row_halves + record[None, :], mask=inside, other=0.0).to(tl.float32)
                if HAS_MINIMUM:
                    minimum = tl.load(row_halves + (record + 16)[None, :], mask=inside, other=0.0)
                    minimum = minimum.to(tl.float32)
            else:
                record = group // 8 * SCALE_STRIDE
                sub = record + 32 * (1 + HAS_MINIMUM) + (group % 8 * SUBS + half * (SUBS - 1)) * 16
                scale = tl.load(row_halves + (record // 2)[None, :], mask=inside, other=0.0).to(tl.float32)
                code = tl.load(row_codes + sub[None, :], mask=inside, other=0).to(tl.int32)
                if IS_NIBBLES:
                    scale = scale * (code & 15).to(tl.float32)
                else:
                    scale = scale * code.to(tl.float32)
                if HAS_MINIMUM:
                    minimum = tl.load(row_halves + (record // 2 + 16)[None, :], mask=inside, other=0.0)
                    if IS_NIBBLES:
                        lesser = (code >> 4) & 15
                    else:
                        lesser = tl.load(row_codes + (sub + 8 * SUBS * 16)[None, :], mask=inside, other=0)
                    minimum = -minimum.to(tl.float32) * lesser.to(tl.float32)
            # --- codes, a byte of each word at a time ---
            if BITS == 8:
                bytes_ = tl.load(row_words + (at + (line + 4 * half) * 16)[None, :], mask=inside, other=0)
            if BITS == 2 or BITS == 3:
                pairs = tl.load(row_words + (at + half * 16)[None, :], mask=inside, other=0)
            if BITS == 6:
                pairs = tl.load(row_words + (at + 64 + half * 16)[None, :], mask=inside, other=0)
            for byte in tl.static_range(4):
                if BITS == 8:
                    value = (bytes_ >> (8 * byte)) & 255
                elif BITS == 2 or BITS == 3:
                    value = (pairs >> (8 * byte + 2 * line)[None, :]) & 3
                else:
                    value = (nibbles >> (8 * byte + 4 * half)) & 15
                if BITS == 6:
                    value = value | ((pairs >> (8 * byte + 2 * line)[None, :]) & 3) << 4
                if BITS == 5:
                    value = value | ((tops >> (8 * byte + 4 * half + line)[None, :]) & 1) << 4
                if BITS == 3:
                    value = value | ((tops >> (8 * byte + 4 * half + line)[None, :]) & 1) << 2
                if IS_TABLE:
                    weight = scale * tl.load(steps + value)
                else:
                    weight = scale * (value - OFFSET).to(tl.float32)
                if HAS_MINIMUM:
                    weight = weight + minimum
                piece = (step * 8 + half * 4 + byte) * (GROUPS * 4)
                sums = _multiply(sums, weight, row_terms + piece, lower_offset, has_token)

    _finish(sums, out + split * split_stride, gate, result, has_token, row, row < num_rows, num_rows, HAS_GATE)


@triton.jit
def float_tiles(
    terms,  # [2, x_rows, room], in the order of the columns
    values,  # the panels, seen as their floats
    out,  # as above, and so on
    gate,
    order,
    tiles,
    num_tokens,
    num_slots,
    sharing,
    num_rows,
    cols,
    room,
    lower_offset,
    panels_per_slot,
    panel_size,  # in floats
    steps_per_split,
    split_stride,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    STEP_COLS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    slot, x_row, result, has_token = _places(order, tiles, num_tokens, num_slots, sharing, IS_GROUPED, BLOCK_T)
    if IS_GROUPED:
        split = tl.program_id(2)
    else:
        split = tl.program_id(2) // num_slots
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    panel = row // 16
    has_row = panel < panels_per_slot
    row_values = values + ((slot.to(tl.int64) * panels_per_slot + panel) * panel_size + row % 16)[:, None]

    index = tl.arange(0, STEP_COLS)
    row_terms = terms + x_row[None, :] * room + index[:, None]
    sums = tl.full((ROWS, BLOCK_T), 0.0, dtype=tl.float32)
    first = split * steps_per_split
    last = first + steps_per_split
    if IS_GROUPED:
        last = tl.where(slot >= 0, last, first)
    for step in range(first, last):
        col = step * STEP_COLS + index
        weight = tl.load(row_values + col[None, :] * 16, mask=has_row[:, None] & (col < cols)[None, :], other=0.0)
        sums = _multiply(sums, weight.to(tl.float32), row_terms + step * STEP_COLS, lower_offset, has_token)

    _finish(sums, out + split * split_stride, gate, result, has_token, row, row < num_rows, num_rows, HAS_GATE)
