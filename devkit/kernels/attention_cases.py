"""Synthetic steps for attention: requests whose contexts are in scattered blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.steps.step import RequestTable, Step
from devkit.kernels.short_rows import rounded_rows


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """The arguments of attention."""

    sizes: Sizes
    query: torch.Tensor
    cache: torch.Tensor
    step: Step


def attention_case(
    sizes: Sizes,
    tokens: Sequence[int],
    lens: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
) -> AttentionCase:
    """Requests that add `tokens` each and are then `lens` long. Values have variance 1. The cache has `dtype`, or 8
    bits if the sizes say so."""
    rng = torch.Generator(device).manual_seed(seed)
    num_blocks = [-(-length // sizes.block_tokens) for length in lens]
    order = np.random.default_rng(seed).permutation(sum(num_blocks)).astype(np.int32) + 1
    blocks = np.zeros((len(lens), max(num_blocks)), np.int32)
    ends = np.cumsum(num_blocks)
    for row, count, end in zip(blocks, num_blocks, ends, strict=True):
        row[:count] = order[end - count : end]
    begins = np.array([0, *itertools.accumulate(tokens)], np.int32)
    positions = np.concatenate([np.arange(n - t, n) for t, n in zip(tokens, lens, strict=True)]).astype(np.int32)
    rows = np.repeat(np.arange(len(lens)), tokens)
    slots = blocks[rows, positions // sizes.block_tokens] * sizes.block_tokens + positions % sizes.block_tokens
    num_slots = (sum(num_blocks) + 1) * sizes.block_tokens
    host_lens = np.array(lens, np.int32)
    tables = (
        torch.from_numpy(begins).to(device),
        torch.from_numpy(host_lens).to(device),
        torch.from_numpy(blocks).to(device),
    )
    query = torch.randn(len(positions), sizes.num_heads, sizes.key_dim, generator=rng, device=device)
    kept = torch.randn(num_slots, sizes.row_width, generator=rng, device=device)
    return AttentionCase(
        sizes,
        query,
        rounded_rows(kept, sizes.short_rows) if sizes.is_short else kept.to(dtype),
        Step(
            positions=torch.from_numpy(positions).to(device),
            slots=torch.from_numpy(slots).to(device),
            sampled=torch.arange(len(positions), device=device),
            requests=RequestTable(begins, host_lens, *tables),
        ),
    )
