"""The kernels of sparse attention on a GPU, checked before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
import triton

from ballast.model.hybrid.agreement import MAX_DIFFERENCE, difference
from ballast.model.hybrid.attention.paged import choose_tilings
from ballast.model.hybrid.attention.sizes import Sizes
from ballast.model.hybrid.faults.kernel_check import ParallelCompile, require
from ballast.model.hybrid.sparse.choice import PlainPositionChoice, highest, spread
from ballast.model.hybrid.sparse.chosen import PlainChosenAttention
from ballast.model.hybrid.sparse.sizes import IndexSizes
from ballast.model.hybrid.sparse.triton_choice import TritonPositionChoice
from ballast.model.hybrid.sparse.triton_chosen import TritonChosenAttention
from ballast.model.hybrid.steps.step import RequestTable, Step

_MORE = 40
"""Number of positions that the longer test request sees, in addition to full groups and top_k."""
_STEPS_OF_SCORES = 4.0
"""Test scores are rounded to multiples of 1 / _STEPS_OF_SCORES, so that many of them are equal."""


def sparse_kernels(
    index: IndexSizes,
    sizes: Sizes,
    kv_dtype: torch.dtype,
    device: torch.device,
    parallel_compile: ParallelCompile = nullcontext,
) -> tuple[TritonPositionChoice, TritonChosenAttention]:
    """The selection of positions and the attention to them on a CUDA device. A captured step has no alternative to
    these kernels, so kernels that cannot be compiled or are wrong raise ValueError, as do heads that are too large."""
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    num_processors = about["multiprocessor_count"]
    choose = TritonPositionChoice(index, num_processors)
    attend = TritonChosenAttention(sizes, index, choose_tilings(sizes, about["max_shared_mem"]), num_processors)
    trial = Trial(choose, attend, index, sizes, kv_dtype, device)

    require("sparse attention", trial.run, trial.why_wrong, parallel_compile)
    return choose, attend


class _Results(NamedTuple):
    """Results of a step: scores [2, positions], the same scores rounded, the positions [2, top_k] selected by these,
    and attention to them. With pools, these have scores and are selected, and then spread to positions."""

    scores: torch.Tensor
    rounded: torch.Tensor
    chosen: torch.Tensor
    attended: torch.Tensor


class Trial:
    """Two tokens at the end of a context, computed both as a prompt and as single tokens. Their selection covers every
    kind of round. The context repeats a few blocks, so that many scores are equal."""

    def __init__(
        self,
        choose: TritonPositionChoice,
        attend: TritonChosenAttention,
        index: IndexSizes,
        sizes: Sizes,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._choose, self._attend = choose, attend
        self._index, self._sizes = index, sizes
        num_blocks, pool = -(-index.top_k // index.block_tokens), index.pool
        rng = torch.Generator(device).manual_seed(0)

        def some(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=rng, device=device)

        self._keys = some((num_blocks + 1) * index.block_pools, index.key_dim).to(kv_dtype)
        self._cache = some((num_blocks + 1) * index.block_tokens, sizes.row_width).to(kv_dtype)
        self._index_query = some(2, index.num_heads, index.key_dim).to(kv_dtype)
        self._weights = some(2, index.num_heads) if index.has_weights else None
        self._query = some(2, sizes.num_heads, sizes.key_dim)
        # One request has three groups, the last of which is short; the other has two.
        length = pool * (2 * choose.group + index.top_pools + _MORE) + pool - 1
        short = length - pool * choose.group
        blocks = torch.arange(num_blocks, 0, -1, dtype=torch.int32, device=device)
        blocks = blocks.repeat(-(-length // (num_blocks * index.block_tokens)))
        self._steps = [
            _tried_step([length], [0, 2], [length - 2, length - 1], blocks),
            _tried_step([short, length], [0, 1, 2], [short - 1, length - 1], blocks),
        ]

    def run(self) -> list[_Results]:
        """Results of each step."""
        return [self._run(step, owners) for step, owners in self._steps]

    def _run(self, step: Step, owners: torch.Tensor) -> _Results:
        capacity = step.requests.blocks.shape[1] * self._index.block_pools
        scores = torch.zeros((2, capacity), device=self._query.device)
        self._choose.score(self._index_query, self._weights, self._keys, owners, step, 0, scores)
        rounded = (scores * _STEPS_OF_SCORES).round() / _STEPS_OF_SCORES
        chosen = torch.zeros((2, self._index.top_pools), dtype=torch.int32, device=scores.device)
        self._choose.choose(rounded, step, 0, chosen)
        positions = chosen if self._index.pool == 1 else self._choose.spread(chosen, step)
        attended = self._attend(self._query, self._cache, positions, owners, step)
        return _Results(scores, rounded, chosen, attended)

    def why_wrong(self) -> str | None:
        """The reason why the kernels are unreliable, or None. Compares their results with the plain implementation."""
        index = self._index
        for (step, owners), found in zip(self._steps, self.run(), strict=True):
            blocks = step.requests.blocks[0]
            expected = PlainPositionChoice(index).scores(self._index_query, self._weights, self._keys, blocks)
            num_seen = (step.positions + 1) // index.pool
            is_seen = torch.arange(expected.shape[1], device=expected.device) < num_seen[:, None]
            by = difference(found.scores[is_seen].cpu().numpy(), expected[is_seen].cpu().numpy())
            if not by <= MAX_DIFFERENCE:
                return f"scores of positions differ from the plain implementation's by {by:.2g} of the largest"
            if not torch.equal(found.chosen, highest(found.rounded, num_seen, index.top_pools)):
                return "the chosen positions are not those with the highest scores"
            positions = found.chosen if index.pool == 1 else spread(found.chosen, step.positions + 1, index)
            plain = PlainChosenAttention(self._sizes, index)(self._query, self._cache, positions, owners, step)
            by = difference(found.attended.cpu().numpy(), plain.cpu().numpy())
            if not by <= MAX_DIFFERENCE:
                return f"attention to selected positions differs from the plain one by {by:.2g} of the largest"
        return None


def _tried_step(
    lens: Sequence[int], begins: Sequence[int], positions: Sequence[int], blocks: torch.Tensor
) -> tuple[Step, torch.Tensor]:
    """A step of two tokens, and the request of each token; all requests have the same blocks."""

    def sent(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=blocks.device)

    host = np.array(begins, np.int32), np.array(lens, np.int32)
    requests = RequestTable(*host, sent(begins), sent(lens), blocks.repeat(len(lens), 1))
    owners = sent([0, 0] if len(lens) == 1 else [0, 1])
    return Step(sent(positions), sent([0, 0]), sent([0]).long(), requests), owners
