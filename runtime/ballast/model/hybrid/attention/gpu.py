"""Chooses the kernels that compute attention on a GPU."""

from __future__ import annotations

import logging

import torch
import triton

from ballast.model.hybrid.attention.flashinfer import RANK, ROPE_DIM, FlashinferAttention
from ballast.model.hybrid.attention.flashinfer_grouped import HEAD_DIMS, FlashinferGrouped
from ballast.model.hybrid.attention.paged import PagedAttention, choose_tilings
from ballast.model.hybrid.attention.sizes import LatentSizes, Sizes
from ballast.model.hybrid.compiling.compiled_aside import CompiledAside
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS
from ballast.model.hybrid.steps.step import Step
from ballast.model.switched_off import SwitchedOff

log = logging.getLogger(__name__)


Flashinfer = FlashinferAttention | FlashinferGrouped


class GpuAttention:
    """Attention with flashinfer's kernels if they are available, otherwise with Ballast's."""

    def __init__(self, paged: PagedAttention, flashinfer: Flashinfer | None = None) -> None:
        self._paged = paged
        self._flashinfer = flashinfer

    @property
    def has_flashinfer(self) -> bool:
        """Whether flashinfer's kernels are used."""
        return self._flashinfer is not None

    def use(self, flashinfer: Flashinfer | None) -> None:
        """Use flashinfer's kernels from the next step on. All prepared steps must have ended."""
        self._flashinfer = flashinfer

    def prepare(self, step: Step) -> None:
        """See `Attention`."""
        if not step.slices:
            self._kernels(step).prepare(step)
        for part in step.slices:
            if not part.is_long:
                self._kernels(part.step).prepare(part.step)

    def __call__(
        self, query: torch.Tensor, cache: torch.Tensor, step: Step, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attention`."""
        return self._kernels(step)(query, cache, step, sinks)

    def _kernels(self, step: Step) -> PagedAttention | Flashinfer:
        """Depends only on the numbers of tokens, because a captured graph of a batch size contains one kernel."""
        if self._flashinfer is not None and self._flashinfer.takes(step.requests):
            return self._flashinfer
        return self._paged


def paged_attention(sizes: Sizes, device: torch.device) -> PagedAttention:
    """Attention with Ballast's kernels, compiled at first use. Raises ValueError if heads are too large."""
    about = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return PagedAttention(sizes, choose_tilings(sizes, about["max_shared_mem"]), about["multiprocessor_count"])


def compiled_flashinfer(
    sizes: Sizes, device: torch.device, off: SwitchedOff, compiled: CompiledAside | None = None
) -> Flashinfer | None:
    """flashinfer's kernels. None if flashinfer has no kernels for these heads, is not installed or cannot compile them;
    in the latter two cases `off` gets the reason. `compiled`: the compilation in progress, which is awaited. Raises the
    errors that CUDA itself reports."""
    if "flashinfer" in off.reasons:
        return None  # already switched off for the other lane
    if not has_kernels(sizes):
        log.info("attention uses Ballast's kernels: flashinfer has none for %s", sizes)
        return None
    try:
        if compiled is not None:
            compiled.wait()
        return (
            FlashinferAttention(sizes, device) if isinstance(sizes, LatentSizes) else FlashinferGrouped(sizes, device)
        )
    except DEVICE_ERRORS:
        raise
    except (ImportError, OSError, RuntimeError) as error:
        last_line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        off.add(
            "flashinfer",
            f"{last_line} (flashinfer needs the wheel's extra [cuda], which has nvcc and ninja, and g++ in PATH)",
        )
        return None


def has_kernels(sizes: Sizes) -> bool:
    """Whether flashinfer has kernels for these heads. For 8 bits, it has none that read a scale per head and token, or
    latents on Hopper."""
    if sizes.is_short:
        return False
    if isinstance(sizes, LatentSizes):
        return (sizes.rank, sizes.rope_dim) == (RANK, ROPE_DIM)
    return sizes.key_dim == sizes.v_dim and sizes.key_dim in HEAD_DIMS and sizes.window is None and not sizes.has_sinks
