"""Triton kernels that multiply packed weights as they lie: decoded in registers, multiplied on tensor cores.

A program takes some panels of one head and a run of tokens, and walks a share of the columns. The order of its sums
depends on the matrix alone, so a token's result does not depend on the other tokens. Triton's built-in operations only:
its own library of kernels (tl.zeros, tl.cdiv) is compiled when it is imported, and cannot be interpreted then.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantized_product(
    x,  # float32 [T, heads, cols]
    words,  # the panels, seen as int32
    halves,  # as float16
    codes,  # as int8
    steps,  # float32 [16], of formats whose codes index a table
    out,  # float32 [splits, T, heads, rows]
    num_tokens,
    num_heads,
    num_rows,
    cols,
    panels_per_head,
    panel_bytes,
    scale_bytes,
    steps_per_split,
    BITS: tl.constexpr,
    SUBS: tl.constexpr,
    OFFSET: tl.constexpr,
    IS_FLAT: tl.constexpr,
    IS_NIBBLES: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    IS_TABLE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    PANELS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks_per_head = (panels_per_head + PANELS - 1) // PANELS
    head = tl.program_id(0) // blocks_per_head
    row = tl.arange(0, PANELS * 16)
    panel = tl.program_id(0) % blocks_per_head * PANELS + row // 16
    lane = row % 16
    has_row = panel < panels_per_head
    begin = (head * panels_per_head + panel).to(tl.int64) * panel_bytes
    row_words = words + begin // 4 + lane
    row_halves = halves + begin // 2 + lane
    row_codes = codes + begin + lane

    token = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    has_token = token < num_tokens
    row_x = x + (token.to(tl.int64) * num_heads + head) * cols

    index = tl.arange(0, GROUPS * 4)
    line = index % 4
    num_groups = cols // 32
    sums = tl.full((BLOCK_T, PANELS * 16), 0.0, dtype=tl.float32)
    first = tl.program_id(2) * steps_per_split
    for step in range(first, first + steps_per_split):
        group = step * GROUPS + index // 4
        has_group = group < num_groups
        inside = has_row[:, None] & has_group[None, :]
        at = scale_bytes // 4 + group * (BITS * 16)
        if BITS >= 4 and BITS <= 6:
            nibbles = tl.load(row_words[:, None] + (at + line * 16)[None, :], mask=inside, other=0)
        if BITS == 5:
            tops = tl.load(row_words[:, None] + (at + 64)[None, :], mask=inside, other=0)
        if BITS == 3:
            tops = tl.load(row_words[:, None] + (at + 32)[None, :], mask=inside, other=0)
        for half in tl.static_range(2):
            # --- scales of the 16 columns ---
            if IS_FLAT:
                record = group * (SCALE_STRIDE // 2)
                scale = tl.load(row_halves[:, None] + record[None, :], mask=inside, other=0.0).to(tl.float32)
                if HAS_MINIMUM:
                    minimum = tl.load(row_halves[:, None] + (record + 16)[None, :], mask=inside, other=0.0)
                    minimum = minimum.to(tl.float32)
            else:
                record = group // 8 * SCALE_STRIDE
                sub = record + 32 * (1 + HAS_MINIMUM) + (group % 8 * SUBS + half * (SUBS - 1)) * 16
                scale = tl.load(row_halves[:, None] + (record // 2)[None, :], mask=inside, other=0.0).to(tl.float32)
                code = tl.load(row_codes[:, None] + sub[None, :], mask=inside, other=0).to(tl.int32)
                if IS_NIBBLES:
                    scale = scale * (code & 15).to(tl.float32)
                else:
                    scale = scale * code.to(tl.float32)
                if HAS_MINIMUM:
                    minimum = tl.load(row_halves[:, None] + (record // 2 + 16)[None, :], mask=inside, other=0.0)
                    if IS_NIBBLES:
                        lesser = (code >> 4) & 15
                    else:
                        lesser = tl.load(row_codes[:, None] + (sub + 8 * SUBS * 16)[None, :], mask=inside, other=0)
                    minimum = -minimum.to(tl.float32) * lesser.to(tl.float32)
            # --- codes, a byte of each word at a time ---
            if BITS == 8:
                bytes_ = tl.load(row_words[:, None] + (at + (line + 4 * half) * 16)[None, :], mask=inside, other=0)
            if BITS == 2 or BITS == 3:
                pairs = tl.load(row_words[:, None] + (at + half * 16)[None, :], mask=inside, other=0)
            if BITS == 6:
                pairs = tl.load(row_words[:, None] + (at + 64 + half * 16)[None, :], mask=inside, other=0)
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
                col = group * 32 + 16 * half + 4 * line + byte
                inputs = tl.load(row_x[:, None] + col[None, :], mask=has_token[:, None] & has_group[None, :], other=0.0)
                sums = tl.dot(inputs, tl.trans(weight), sums, input_precision=PRECISION)

    out_row = panel * 16 + lane
    place = (tl.program_id(2) * num_tokens + token).to(tl.int64) * num_heads + head
    kept = has_token[:, None] & (has_row & (out_row < num_rows))[None, :]
    tl.store(out + place[:, None] * num_rows + out_row[None, :], sums, mask=kept)


@triton.jit
def float_product(
    x,  # float32 [T, heads, cols]
    values,  # the panels, seen as their floats
    out,  # float32 [splits, T, heads, rows]
    num_tokens,
    num_heads,
    num_rows,
    cols,
    panels_per_head,
    panel_size,  # in floats
    steps_per_split,
    BLOCK_K: tl.constexpr,
    PANELS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks_per_head = (panels_per_head + PANELS - 1) // PANELS
    head = tl.program_id(0) // blocks_per_head
    row = tl.arange(0, PANELS * 16)
    panel = tl.program_id(0) % blocks_per_head * PANELS + row // 16
    lane = row % 16
    has_row = panel < panels_per_head
    row_values = values + (head * panels_per_head + panel).to(tl.int64) * panel_size + lane

    token = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    has_token = token < num_tokens
    row_x = x + (token.to(tl.int64) * num_heads + head) * cols

    sums = tl.full((BLOCK_T, PANELS * 16), 0.0, dtype=tl.float32)
    first = tl.program_id(2) * steps_per_split
    for step in range(first, first + steps_per_split):
        col = step * BLOCK_K + tl.arange(0, BLOCK_K)
        has_col = col < cols
        weight = tl.load(row_values[None, :] + col[:, None] * 16, mask=has_col[:, None] & has_row[None, :], other=0.0)
        inputs = tl.load(row_x[:, None] + col[None, :], mask=has_token[:, None] & has_col[None, :], other=0.0)
        sums = tl.dot(inputs, weight.to(tl.float32), sums, input_precision=PRECISION)

    out_row = panel * 16 + lane
    place = (tl.program_id(2) * num_tokens + token).to(tl.int64) * num_heads + head
    kept = has_token[:, None] & (has_row & (out_row < num_rows))[None, :]
    tl.store(out + place[:, None] * num_rows + out_row[None, :], sums, mask=kept)
