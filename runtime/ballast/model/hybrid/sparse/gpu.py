"""The kernels of sparse attention on a GPU, tried before they are used."""

from __future__ import annotations

import numpy as np
import torch
import triton

from ballast.errors import first_line
from ballast.model.hybrid.agreement import MAX_DIFFERENCE, difference
from ballast.model.hybrid.attention.paged import choose_tilings
from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.device_errors import DEVICE_ERRORS
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, highest
from ballast.model.hybrid.sparse.chosen import PlainChosenAttention
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.sparse.triton_choice import TritonPositionChoice
from ballast.model.hybrid.sparse.triton_chosen import TritonChosenAttention
from ballast.model.hybrid.step import RequestTable, Step

_MORE = 40
"""Positions beyond what is chosen that the tried request sees."""
_STEPS_OF_SCORES = 4.0
"""Of a score's unit, to which tried scores are rounded, so that many are equal."""


def sparse_kernels(
    index: IndexSizes, sizes: LatentSizes, kv_dtype: torch.dtype, device: torch.device
) -> tuple[TritonPositionChoice, TritonChosenAttention]:
    """What chooses positions and what attends to them, on a CUDA device. There is no other way to compute them inside a
    captured step, so kernels that cannot be compiled or are wrong raise ValueError, as heads that are too large do."""
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    num_processors = about["multiprocessor_count"]
    choose = TritonPositionChoice(index, num_processors)
    attend = TritonChosenAttention(sizes, choose_tilings(sizes, about["max_shared_mem"]), num_processors)
    try:
        reason = why_wrong(choose, attend, index, sizes, kv_dtype, device)
    except DEVICE_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  compilers raise whatever they like
        reason = first_line(error)
    if reason is not None:
        raise ValueError(f"this GPU's kernels of sparse attention are of no use: {reason}; --device cpu computes it")
    return choose, attend


def why_wrong(
    choose: TritonPositionChoice,
    attend: TritonChosenAttention,
    index: IndexSizes,
    sizes: LatentSizes,
    kv_dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """The reason why the kernels cannot be relied on, or None: two tokens at the end of a context that is longer than
    what is chosen, as a prompt's and as single ones, compared with the plain way."""
    rng = torch.Generator(device).manual_seed(0)
    length = index.top_k + _MORE
    num_blocks = -(-length // index.block_tokens)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=device)

    keys = some((num_blocks + 1) * index.block_tokens, index.key_dim).to(kv_dtype)
    cache = some((num_blocks + 1) * index.block_tokens, sizes.row_width).to(kv_dtype)
    query, weights = some(2, index.num_heads, index.key_dim).to(kv_dtype), some(2, index.num_heads)
    heads = some(2, sizes.num_heads, sizes.key_dim)
    plain = PlainPositionChoice(index)
    for step, owners in (_tried_step(length, num_blocks, device, of_one=of_one) for of_one in (True, False)):
        scores = torch.zeros((2, num_blocks * index.block_tokens), device=device)
        choose.score(query, weights, keys, owners, step, 0, scores)
        expected = plain.scores(query, weights, keys, step.requests.blocks[0])
        for own, right, seen in zip(scores, expected, (length - 1, length), strict=True):
            by = difference(own[:seen].cpu().numpy(), right[:seen].cpu().numpy())
            if not by <= MAX_DIFFERENCE:
                return f"scores of positions differ from the plain way's by {by:.2g} of the largest"
        few = (scores * _STEPS_OF_SCORES).round() / _STEPS_OF_SCORES
        chosen = torch.zeros((2, index.top_k), dtype=torch.int32, device=device)
        choose.choose(few, step, 0, chosen)
        if not torch.equal(chosen, highest(few, step.positions + 1, index.top_k)):
            return "other positions are chosen than those of the highest scores"
        found = attend(heads, cache, chosen, owners, step)
        wanted = PlainChosenAttention(sizes)(heads, cache, chosen, owners, step)
        by = difference(found.cpu().numpy(), wanted.cpu().numpy())
        if not by <= MAX_DIFFERENCE:
            return f"attention to chosen positions differs from the plain way's by {by:.2g} of the largest"
    return None


def _tried_step(length: int, num_blocks: int, device: torch.device, *, of_one: bool) -> tuple[Step, torch.Tensor]:
    """Two tokens, and the request of each: the last two of one request, or the last of two requests that have the same
    blocks, in any order."""

    def sent(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    order = torch.arange(num_blocks, 0, -1, dtype=torch.int32, device=device)
    begins = np.array([0, 2] if of_one else [0, 1, 2], np.int32)
    lens = np.array([length] if of_one else [length - 1, length], np.int32)
    requests = RequestTable(begins, lens, sent(*begins), sent(*lens), order.repeat(len(lens), 1))
    step = Step(sent(length - 2, length - 1), sent(0, 0), sent(0).long(), requests)
    return step, sent(0, 0) if of_one else sent(0, 1)
