"""Small copies from pinned memory to the device that do not wait for large copies.

A GPU's copy engine executes the copies of one direction in the order in which they arrive, regardless of their streams
and priorities. While a prompt streams experts, a copy of one kilobyte would wait for up to twelve pieces of 64 MB. A
kernel reads pinned memory without the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

BLOCK_WORDS = 1024

SmallCopy = Callable[[torch.Tensor, torch.Tensor], None]
"""Copies the first tensor to the second, in the order of the current stream. The first is contiguous, and pinned if the
device has a queue; the second has the same shape and type and is on the device. Their size is a multiple of 32 bits.
The first must not change until the copy has run."""


def carried(kernels: ModuleType) -> SmallCopy:
    """Copies by a GPU's kernel (`small_copy_kernels`)."""

    def carry(host: torch.Tensor, out: torch.Tensor) -> None:
        source, target = (tensor.view(-1).view(torch.int32) for tensor in (host, out))
        num_words = target.numel()
        grid = (-(-num_words // BLOCK_WORDS),)
        # Launched even if `parallel_compile` makes launches compile only: kernels from outside Triton still run there,
        # and read addresses from the copied data.
        kernels.copy_words.run(source, target, num_words, grid=grid, warmup=False, BLOCK=BLOCK_WORDS)

    return carry
