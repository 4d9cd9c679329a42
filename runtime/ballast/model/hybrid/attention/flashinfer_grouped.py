"""Grouped-query attention of prompts by flashinfer's kernels: fa3 on Hopper, fa2 elsewhere.

Ballast's kernels compute steps with few tokens per request: fa3's tiles hold 128 tokens of one head, and read a group's
keys once per query head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ballast.model.hybrid.attention.attention import PlainAttention
from ballast.model.hybrid.attention.flashinfer import WORKSPACE_BYTES, planning_into
from ballast.model.hybrid.attention.sizes import GroupedSizes
from ballast.model.hybrid.copies import small_copy_kernels
from ballast.model.hybrid.copies.small_copies import carried
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.steps.step import RequestTable, Step

HEAD_DIMS = (64, 128, 256)
"""Widths that flashinfer's kernels support, if keys and values have the same width."""
MIN_TOKENS = 32
"""Minimum average number of new tokens per request of a step."""
MAX_TILES = 16 << 10
"""Maximum tiles of 128 tokens and one head in a step: their tables take half of a plan's workspace."""
_TILE_TOKENS = 128
_FLOAT_WORKSPACE_BYTES = 1 << 20
"""Work is not split among programs, so nothing has to be merged."""
_TOLERANCE = 2e-2
"""Tolerance for values of variance 1: wrong results differ by more."""


def compile_grouped(head_dim: int, device: torch.device) -> None:
    """Compile the kernels for heads of one width, unless flashinfer's cache has them. Raises ImportError, OSError or
    RuntimeError."""
    from flashinfer.jit.attention import gen_batch_prefill_module
    from flashinfer.utils import PosEncodingMode, determine_attention_backend

    half, plain = torch.float16, PosEncodingMode.NONE.value
    backend = determine_attention_backend(device, plain, False, False, half, half)
    spec = gen_batch_prefill_module(
        backend, half, half, half, torch.int32, head_dim, head_dim, plain, False, False, False
    )
    spec.build_and_load()


class FlashinferGrouped:
    """`Attention` for one model's sizes, on one device, for steps for which `takes` is true. Queries and results are
    rounded to half precision."""

    def __init__(self, sizes: GroupedSizes, device: torch.device) -> None:
        """Compile the kernels, unless flashinfer's cache has them, and compare them with the plain implementation.
        Raises ImportError, OSError or RuntimeError."""
        import flashinfer  # imported here, because it takes a second and needs a CUDA device

        workspace = torch.empty(_FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._sizes = sizes
        self._platform = platform_of(device)
        self._copy = carried(small_copy_kernels)
        self._aside = self._platform.new_stream()
        self._unread = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._make_wrapper: Callable[[], Any] = lambda: flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
        self._wrappers: list[Any] = []
        """One plan for a whole step and one for a step's slices."""
        self._try(device)

    def takes(self, requests: RequestTable) -> bool:
        """Whether a step is long enough to benefit, and fits flashinfer's plan. Depends only on numbers of tokens."""
        return is_long(requests.host_begins, self._sizes.num_heads)

    def prepare(self, step: Step) -> None:
        """Divide the step among the multiprocessors.

        As in `FlashinferAttention.prepare`, flashinfer's copies go to an unused buffer, and a kernel copies the plan
        again. The block table, in row order, is the list of pages, and each request's pages begin at its row. Each
        request is passed with all pages of its row. So the number of tokens in its last page, from which fa2 computes
        the length, may be zero or negative."""
        requests, sizes = step.requests, self._sizes
        while len(self._wrappers) <= requests.place:
            self._wrappers.append(self._make_wrapper())
        wrapper, max_blocks = self._wrappers[requests.place], requests.blocks.shape[1]
        first_pages = np.arange(requests.num_requests + 1, dtype=np.int32) * np.int32(max_blocks)
        host_lens = torch.from_numpy(requests.host_lens.copy()).pin_memory()
        with self._platform.on(self._aside), planning_into(wrapper, self._unread):
            wrapper.plan(
                qo_indptr=torch.from_numpy(requests.host_begins).pin_memory(),
                paged_kv_indptr=torch.from_numpy(first_pages).pin_memory(),
                paged_kv_indices=requests.blocks.view(-1),
                paged_kv_last_page_len=host_lens,
                seq_lens=host_lens,
                num_qo_heads=sizes.num_heads,
                num_kv_heads=sizes.num_kv_heads,
                head_dim_qk=sizes.key_dim,
                page_size=sizes.block_tokens,
                causal=True,
                sm_scale=1.0,
                q_data_type=torch.float16,
                kv_data_type=torch.float16,
                disable_split_kv=True,
            )
        used = slice(_plan_bytes(list(wrapper._plan_info)))
        self._copy(wrapper._pin_memory_int_workspace_buffer[used], wrapper._int_workspace_buffer[used])
        device = requests.blocks.device
        wrapper._qo_indptr_buf = requests.begins
        wrapper._paged_kv_indptr_buf = torch.arange(len(first_pages), dtype=torch.int32, device=device) * max_blocks
        wrapper._paged_kv_last_page_len_buf = requests.lens - (max_blocks - 1) * sizes.block_tokens

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attention`; the cache holds half precision."""
        assert cache.dtype == torch.float16
        assert sinks is None
        sizes = self._sizes
        rounded = torch.empty_like(query, dtype=cache.dtype)
        # The query is scaled before it is rounded; `largest_query` has clamped numbers that would still overflow.
        torch.mul(query, sizes.scale, out=rounded)
        pages = cache.view(-1, sizes.block_tokens, 2, sizes.num_kv_heads, sizes.key_dim)
        attended = torch.empty_like(rounded)
        self._wrappers[step.requests.place].run(rounded, (pages[:, :, 0], pages[:, :, 1]), out=attended)
        return attended.float()

    def _try(self, device: torch.device) -> None:
        """Run two requests, one with a context, so that kernels that cannot run or compute wrong results fail now."""
        sizes, random = self._sizes, torch.Generator(device).manual_seed(0)
        added, lens = np.array([40, 70], np.int32), np.array([40, 200], np.int32)
        begins = np.concatenate([[0], added.cumsum()]).astype(np.int32)
        positions = np.concatenate([np.arange(end - count, end) for count, end in zip(added, lens, strict=True)])
        num_blocks = -(-int(lens.max()) // sizes.block_tokens)
        # In descending order, so that pages are not consecutive.
        blocks = torch.arange(2 * num_blocks, 0, -1, dtype=torch.int32, device=device).view(2, num_blocks)
        requests = RequestTable(
            begins, lens, torch.from_numpy(begins).to(device), torch.from_numpy(lens).to(device), blocks
        )
        where = torch.from_numpy(positions.astype(np.int32)).to(device)
        step = Step(where, where, where.long(), requests)
        query = torch.randn((len(positions), sizes.num_heads, sizes.key_dim), generator=random, device=device)
        num_slots = (2 * num_blocks + 1) * sizes.block_tokens
        cache = torch.randn((num_slots, sizes.row_width), generator=random, device=device).half()
        self.prepare(step)
        apart = (self(query, cache, step) - PlainAttention(sizes)(query, cache, step)).abs().max()
        if not float(apart) <= _TOLERANCE:
            raise RuntimeError(f"flashinfer's attention differs from the plain one by {float(apart):g}")


def is_long(begins: NDArray[np.int32], num_heads: int) -> bool:
    """Whether flashinfer computes a step. `begins` [R + 1]: tokens of the step that precede each request."""
    added = np.diff(begins)
    num_tiles = int((-(-added // _TILE_TOKENS)).sum()) * num_heads
    return float(added.mean()) >= MIN_TOKENS and num_tiles <= MAX_TILES


def _plan_bytes(plan: list[int]) -> int:
    """Bytes of a plan's tables. fa3's plan (`PrefillPlanSM90Info`, scheduler.cuh) has nine numbers; the first eight are
    offsets of arrays of equal size, the last array's at index 7. fa2's plan (`PrefillPlanInfo`), without split work,
    ends with one number at the offset that index 9 gives."""
    return plan[7] + plan[1] - plan[0] if len(plan) == 9 else plan[9] + 4
