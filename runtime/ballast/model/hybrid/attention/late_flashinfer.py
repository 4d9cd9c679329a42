"""Compiles flashinfer's kernels while a model is loaded and, for prompts, while it serves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from ballast.errors import first_line
from ballast.model.hybrid.attention.expanded import ExpandedAttention, ExpandedSizes
from ballast.model.hybrid.attention.flashinfer import compile_latent
from ballast.model.hybrid.attention.flashinfer_expanded import (
    HEAD_DIM,
    V_DIM,
    FlashinferExpandedKernels,
    compile_single_prefill,
)
from ballast.model.hybrid.attention.flashinfer_grouped import compile_grouped
from ballast.model.hybrid.attention.gpu import GpuAttention, compiled_flashinfer, has_kernels
from ballast.model.hybrid.attention.sizes import LatentSizes, Sizes
from ballast.model.hybrid.attention.triton_expanded import why_wrong
from ballast.model.hybrid.compiling.compiled_aside import CompiledAside
from ballast.model.hybrid.compiling.late_kernels import LateKernels
from ballast.model.hybrid.faults.device_errors import DEVICE_ERRORS
from ballast.model.switched_off import SwitchedOff

log = logging.getLogger(__name__)


class LateFlashinfer:
    """flashinfer's kernels of one model. Compilation starts on construction."""

    def __init__(
        self, sizes: Sizes, expanded_sizes: ExpandedSizes | None, device: torch.device, off: SwitchedOff
    ) -> None:
        """`expanded_sizes`: those of attention outside the latent space, if the model has any. `off` gets the reason if
        kernels cannot be compiled or are wrong."""
        self._sizes, self._expanded_sizes = sizes, expanded_sizes
        self._device, self._off = device, off
        self._attention: CompiledAside | None = None
        self._expanded: CompiledAside | None = None
        if not has_kernels(replace(sizes, is_short=False)):
            return
        if sizes.is_short:
            # Expanded attention reads the cache's numbers in half precision.
            if expanded_sizes is not None:
                self._expanded = compiling_expansion(expanded_sizes, device)
            return
        if not isinstance(sizes, LatentSizes):
            self._attention = CompiledAside(
                "grouped attention", partial(compile_grouped, sizes.key_dim, device), is_urgent=False
            )
            return
        self._attention = CompiledAside("latent attention", partial(compile_latent, device))
        if expanded_sizes is not None:
            self._expanded = compiling_expansion(expanded_sizes, device, after=self._attention)

    def use_in(
        self,
        lanes: Sequence[GpuAttention],
        use_expanded: Callable[[ExpandedAttention], None],
        num_saturated: torch.Tensor,
        piece_keys: int,
        late: LateKernels,
    ) -> None:
        """Make `lanes` use the kernels, and pass attention outside the latent space to `use_expanded`. That attention
        counts in `num_saturated` and expands `piece_keys` keys at a time. Waits for kernels that decode steps use,
        because these steps are captured; `late` gets the others. Raises the errors that CUDA itself reports."""

        def use() -> None:
            # All are made before any is used: device memory may be too small for the last one.
            made = [compiled_flashinfer(self._sizes, self._device, self._off, self._attention) for _ in lanes]
            for lane, flashinfer in zip(lanes, made, strict=True):
                lane.use(flashinfer)

        if self._attention is None or isinstance(self._sizes, LatentSizes):
            use()
        else:
            late.add(self._attention, use)
        sizes, compiled = self._expanded_sizes, self._expanded
        if sizes is None or compiled is None or not (lanes[0].has_flashinfer or self._sizes.is_short):
            return

        def use_if_equal() -> None:
            expanded = compiled_expansion(sizes, compiled, num_saturated, piece_keys, self._device, self._off)
            if expanded is not None:
                use_expanded(expanded)

        late.add(compiled, use_if_equal)


def compiling_expansion(
    sizes: ExpandedSizes, device: torch.device, after: CompiledAside | None = None
) -> CompiledAside | None:
    """Start to compile the kernels of attention outside the latent space, after `after` has ended. This takes one to
    two minutes. None if no kernels exist for these heads."""
    if (sizes.nope_dim + sizes.rope_dim, sizes.v_dim) != (HEAD_DIM, V_DIM):
        log.info(
            "attention of long prompts uses Ballast's kernels: flashinfer's exist only for heads of %d + %d",
            HEAD_DIM,
            V_DIM,
        )
        return None

    def compile_it() -> None:
        if after is not None:
            after.wait()
        compile_single_prefill(device)

    return CompiledAside("expanded attention", compile_it, is_urgent=False)


def compiled_expansion(
    sizes: ExpandedSizes,
    compiled: CompiledAside,
    num_saturated: torch.Tensor,
    piece_keys: int,
    device: torch.device,
    off: SwitchedOff,
) -> ExpandedAttention | None:
    """Wait for the kernels of attention outside the latent space; returns the attention. `num_saturated`: the counter
    of infinite numbers; `piece_keys`: maximum number of expanded keys at a time. None if the kernels cannot be compiled
    or are wrong; `off` then gets the reason. Raises the errors that CUDA itself reports."""
    try:
        compiled.wait()
        kernels = FlashinferExpandedKernels(sizes, num_saturated)
        reason = why_wrong(kernels, sizes, device)
    except DEVICE_ERRORS:
        raise
    except (ImportError, OSError, RuntimeError) as error:
        reason = first_line(error)
    if reason is not None:
        off.add("flashinfer", reason)
        return None
    return ExpandedAttention(sizes, kernels, piece_keys)
