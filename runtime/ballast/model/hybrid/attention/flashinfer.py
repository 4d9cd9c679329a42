"""Latent attention by flashinfer's kernels: fa3 on Hopper, fa2 elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ballast.model.hybrid.attention.sizes import LatentSizes
from ballast.model.hybrid.copies import small_copy_kernels
from ballast.model.hybrid.copies.small_copies import carried
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.hybrid.steps.step import RequestTable, Step

RANK, ROPE_DIM = 512, 64
"""The sizes of latents that flashinfer's kernels support."""
MAX_TILES = 15 << 10
"""Maximum tiles of rows in a step. flashinfer's plan holds 16384 work items and does not check the limit. It has one
item per tile, plus at most one per multiprocessor of the GPU."""
_TILE_ROWS = 64
_HALF_BYTES, _FLOAT_BYTES = 2, 4
WORKSPACE_BYTES = 8 << 20
"""Size of a wrapper's tables on the device."""
_LAST_TABLE, _TABLE_BYTES = 15, 4 << 14
"""Indices in flashinfer's plan (`MLAPlanInfo`, scheduler.cuh) of the offset of its last table and of that table's
size."""


def compile_latent(device: torch.device) -> None:
    """Compile the kernels, unless flashinfer's cache has them. Raises ImportError, OSError or RuntimeError."""
    from flashinfer.jit import gen_batch_mla_module
    from flashinfer.utils import determine_mla_backend

    half = torch.float16
    backend = determine_mla_backend(device)
    gen_batch_mla_module(backend, half, half, half, torch.int32, RANK, ROPE_DIM, False).build_and_load()


class FlashinferAttention:
    """`Attention` for one model's sizes, on one device. Queries and results are rounded to half precision."""

    def __init__(self, sizes: LatentSizes, device: torch.device) -> None:
        """Compile the kernels, unless flashinfer's cache has them, and run them once. Raises ImportError, OSError or
        RuntimeError."""
        import flashinfer  # imported here, because it takes a second and needs a CUDA device

        processors = torch.cuda.get_device_properties(device).multi_processor_count
        # Two partial tiles per multiprocessor, plus the rounding up of addresses.
        partial_bytes = 2 * processors * _TILE_ROWS * (RANK * _HALF_BYTES + _FLOAT_BYTES) + (1 << 10)
        workspace = torch.empty(partial_bytes, dtype=torch.uint8, device=device)
        self._sizes = sizes
        self._platform = platform_of(device)
        self._copy = carried(small_copy_kernels)
        self._aside = self._platform.new_stream()
        self._unread = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._make_wrapper: Callable[[], Any] = lambda: flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace)
        self._wrappers: list[Any] = []
        """One plan for a whole step and one for a step's slices. The workspace's content is used immediately."""
        self._try(device)

    def takes(self, requests: RequestTable) -> bool:
        """Whether a step fits flashinfer's plan."""
        rows = np.diff(requests.host_begins) * self._sizes.num_heads
        tile = 2 * _TILE_ROWS if int(rows.mean()) > _TILE_ROWS else _TILE_ROWS
        return int((-(-rows // tile)).sum()) <= MAX_TILES

    def prepare(self, step: Step) -> None:
        """Divide the step among the multiprocessors; a captured graph finds the plan at the address of the previous
        one.

        flashinfer copies its plan with the copy engine, where the copy may wait behind streamed experts
        (`small_copies`). So that copy goes to an unused buffer on a separate stream, and a kernel copies the plan
        again. Tables are passed in pinned memory: copies from other memory may wait for the running step."""
        requests = step.requests
        while len(self._wrappers) <= requests.place:
            self._wrappers.append(self._make_wrapper())
        # The block table, in row order, is the list of pages; each request's pages begin at its row.
        first_pages = np.arange(requests.num_requests + 1, dtype=np.int32) * np.int32(requests.blocks.shape[1])
        wrapper = self._wrappers[requests.place]
        with self._platform.on(self._aside), planning_into(wrapper, self._unread):
            wrapper.plan(
                qo_indptr=torch.from_numpy(requests.host_begins).pin_memory(),
                kv_indptr=torch.from_numpy(first_pages).pin_memory(),
                kv_indices=requests.blocks.view(-1),
                kv_len_arr=torch.from_numpy(requests.host_lens).pin_memory(),
                num_heads=self._sizes.num_heads,
                head_dim_ckv=RANK,
                head_dim_kpe=ROPE_DIM,
                page_size=self._sizes.block_tokens,
                causal=True,
                sm_scale=1.0,
                q_data_type=torch.float16,
                kv_data_type=torch.float16,
            )
        used = slice(int(wrapper._plan_info[_LAST_TABLE]) + _TABLE_BYTES)
        self._copy(wrapper._pin_memory_int_workspace_buffer[used], wrapper._int_workspace_buffer[used])

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attention`; the cache holds half precision."""
        assert cache.dtype == torch.float16
        rounded = torch.empty_like(query, dtype=cache.dtype)
        # The query is scaled before it is rounded; `largest_query` has clamped numbers that would still overflow.
        torch.mul(query, self._sizes.scale, out=rounded)
        pages = cache.view(-1, self._sizes.block_tokens, RANK + ROPE_DIM)
        attended: torch.Tensor = self._wrappers[step.requests.place].run(
            rounded[..., :RANK], rounded[..., RANK:], pages[..., :RANK], pages[..., RANK:]
        )
        return attended.float()

    def _try(self, device: torch.device) -> None:
        """Run one token of zeros that attends only to itself, so that kernels that cannot run on this device fail
        now."""
        host = np.array([0, 1], np.int32)
        begins = torch.from_numpy(host).to(device)
        requests = RequestTable(host, host[1:], begins, begins[1:], begins[:1, None])
        step = Step(begins[:1], begins[:1], begins[:1].long(), requests)
        width = RANK + ROPE_DIM
        self.prepare(step)
        self(
            torch.zeros((1, self._sizes.num_heads, width), device=device),
            torch.zeros((self._sizes.block_tokens, width), dtype=torch.float16, device=device),
            step,
        )
        torch.cuda.synchronize(device)


@contextmanager
def planning_into(wrapper: Any, unread: torch.Tensor) -> Iterator[None]:
    """Redirect flashinfer's own copy of the plan to `unread`, away from the tables that its kernels read."""
    tables = wrapper._int_workspace_buffer
    wrapper._int_workspace_buffer = unread
    try:
        yield
    finally:
        wrapper._int_workspace_buffer = tables
