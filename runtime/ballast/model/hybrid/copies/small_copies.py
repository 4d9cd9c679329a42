"""Small copies from pinned memory to the device that do not wait for large copies.

A GPU's copy engine takes the copies of one direction in the order in which they reach it, whatever their streams and
priorities. Behind the experts of a prompt that streams, a copy of a kilobyte waits for up to twelve pieces of 64 MB. A
kernel reads pinned memory without the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

BLOCK_WORDS = 1024

SmallCopy = Callable[[torch.Tensor, torch.Tensor], None]
"""Copies the first tensor, contiguous and pinned where the device has a queue, to the second, of the same shape and
type on the device, in the order of the current stream. Their bytes are whole words of 32 bits. The first must not
change until the copy has run."""


def carried(kernels: ModuleType) -> SmallCopy:
    """Copies by a GPU's kernel (`small_copy_kernels`)."""

    def carry(host: torch.Tensor, out: torch.Tensor) -> None:
        source, target = (tensor.view(-1).view(torch.int32) for tensor in (host, out))
        num_words = target.numel()
        grid = (-(-num_words // BLOCK_WORDS),)
        # Launched even where `parallel_compile` lets launches only compile: kernels that are not Triton's run there,
        # and find their addresses in what is copied.
        kernels.copy_words.run(source, target, num_words, grid=grid, warmup=False, BLOCK=BLOCK_WORDS)

    return carry
