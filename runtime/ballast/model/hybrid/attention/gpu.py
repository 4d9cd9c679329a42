"""Chooses the kernels that compute attention on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
import triton

from ballast.errors import first_line
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes
from ballast.model.hybrid.attention.flashinfer import RANK, ROPE_DIM, FlashinferAttention
from ballast.model.hybrid.attention.flashinfer_expanded import (
    HEAD_DIM,
    V_DIM,
    CompiledAside,
    FlashinferExpandedKernels,
    compile_single_prefill,
    why_wrong,
)
from ballast.model.hybrid.attention.flashinfer_grouped import HEAD_DIMS, FlashinferGrouped
from ballast.model.hybrid.attention.paged import PagedAttention, choose_tilings
from ballast.model.hybrid.attention.sizes import LatentSizes, Sizes
from ballast.model.hybrid.device_errors import DEVICE_ERRORS
from ballast.model.hybrid.step import Step
from ballast.model.switched_off import SwitchedOff

log = logging.getLogger(__name__)


Flashinfer = FlashinferAttention | FlashinferGrouped


class GpuAttention:
    """Attention by flashinfer's kernels where they can be used, by ours elsewhere."""

    def __init__(self, paged: PagedAttention, flashinfer: Flashinfer | None) -> None:
        self._paged = paged
        self._flashinfer = flashinfer

    @property
    def has_flashinfer(self) -> bool:
        """Whether flashinfer's kernels are used."""
        return self._flashinfer is not None

    def prepare(self, step: Step) -> None:
        """See `Attention`."""
        if not step.slices:
            self._kernels(step).prepare(step)
        for part in step.slices:
            if not part.is_long:
                self._kernels(part.step).prepare(part.step)

    def __call__(self, query: torch.Tensor, cache: torch.Tensor, step: Step) -> torch.Tensor:
        """See `Attention`."""
        return self._kernels(step)(query, cache, step)

    def _kernels(self, step: Step) -> PagedAttention | Flashinfer:
        """By the numbers of tokens only: a captured graph of a batch size holds one or the other."""
        if self._flashinfer is not None and self._flashinfer.takes(step.requests):
            return self._flashinfer
        return self._paged


def gpu_attention(sizes: Sizes, device: torch.device, off: SwitchedOff) -> GpuAttention:
    """Attention for a CUDA device. Raises ValueError where heads are too large."""
    return GpuAttention(paged_attention(sizes, device), compiled_flashinfer(sizes, device, off))


def start_expansion(
    sizes: ExpandedSizes, device: torch.device, off: SwitchedOff
) -> Callable[[torch.Tensor, int], ExpandedAttention | None]:
    """Begin to compile the kernels of attention outside the latent space, which takes a minute or two, beside whatever
    comes next. What is returned waits for the end: the attention, given what counts saturated numbers and the most keys
    at a time; None where such heads have no kernels, or where these cannot be compiled or are wrong, as `off` then
    knows. It raises what CUDA itself reports."""
    if (sizes.nope_dim + sizes.rope_dim, sizes.v_dim) != (HEAD_DIM, V_DIM):
        log.info(
            "attention of long prompts stays in the latent space: there are kernels for heads of %d + %d alone",
            HEAD_DIM,
            V_DIM,
        )
        return lambda num_saturated, piece_keys: None
    compiled = CompiledAside(partial(compile_single_prefill, device))

    def finish(num_saturated: torch.Tensor, piece_keys: int) -> ExpandedAttention | None:
        try:
            compiled.wait()
            kernels = FlashinferExpandedKernels(sizes, num_saturated)
            reason = why_wrong(kernels, sizes, device)
        except DEVICE_ERRORS:
            raise
        except (ImportError, OSError, RuntimeError) as error:
            reason = first_line(error)
        if reason is not None:
            off.add("expanded_attention", reason)
            return None
        return ExpandedAttention(sizes, kernels, piece_keys)

    return finish


def paged_attention(sizes: Sizes, device: torch.device) -> PagedAttention:
    """Attention by our kernels, compiled at their first use. Raises ValueError where heads are too large."""
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return PagedAttention(sizes, choose_tilings(sizes, about["max_shared_mem"]), about["multiprocessor_count"])


def compiled_flashinfer(sizes: Sizes, device: torch.device, off: SwitchedOff) -> Flashinfer | None:
    """flashinfer's kernels, or None where it has none for such heads, is not installed or cannot compile them; `off`
    knows of the latter two. Raises what CUDA itself reports."""
    if "flashinfer" in off.reasons:
        return None  # as for the other lane
    if not _has_kernels(sizes):
        log.info("attention by Ballast's own kernels: flashinfer has none for %s", sizes)
        return None
    try:
        return (
            FlashinferAttention(sizes, device) if isinstance(sizes, LatentSizes) else FlashinferGrouped(sizes, device)
        )
    except DEVICE_ERRORS:
        raise
    except (ImportError, OSError, RuntimeError) as error:
        last_line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        off.add(
            "flashinfer",
            f"{last_line} (it takes the extra ballast-serve[cuda], which brings nvcc and ninja, and g++ in PATH)",
        )
        return None


def _has_kernels(sizes: Sizes) -> bool:
    """Whether flashinfer has kernels for such heads."""
    if isinstance(sizes, LatentSizes):
        return (sizes.rank, sizes.rope_dim) == (RANK, ROPE_DIM)
    return sizes.key_dim == sizes.v_dim and sizes.key_dim in HEAD_DIMS
