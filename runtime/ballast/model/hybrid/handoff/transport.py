"""Carries activations to the experts in host memory, and results back, in the order of the device's queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Host memory that both sides see, pinned where the device has a queue."""

    inputs: torch.Tensor  # float32 [most tokens, D]
    ids: torch.Tensor  # int32 [most tokens, k]
    weights: torch.Tensor  # float32 [most tokens, k]
    results: torch.Tensor  # float32 [most tokens, D]


Send = Callable[[Mailbox, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Puts x float32 [T, D], ids int32 [T, k] and weights float32 [T, k] into the mailbox."""
Fetch = Callable[[Mailbox, int], torch.Tensor]
"""The results of T tokens on the device, float32 [T, D]."""


def carried(device: torch.device, kernels: ModuleType) -> tuple[Send, Fetch]:
    """Transport by a GPU's kernels (`transport_kernels`), which reach pinned memory: one launch each way."""

    def send(mailbox: Mailbox, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        block = _block(x.numel())
        kernels.send[(-(-x.numel() // block),)](
            x.contiguous(),
            ids.contiguous(),
            weights.contiguous(),
            mailbox.inputs,
            mailbox.ids,
            mailbox.weights,
            x.numel(),
            ids.numel(),
            BLOCK=block,
        )

    def fetch(mailbox: Mailbox, num_tokens: int) -> torch.Tensor:
        out = torch.empty((num_tokens, mailbox.results.shape[1]), device=device)
        block = _block(out.numel())
        kernels.fetch[(-(-out.numel() // block),)](mailbox.results, out, out.numel(), BLOCK=block)
        return out

    return send, fetch


def _block(num_values: int) -> int:
    """Values that a program carries: fewer for few tokens, so that many programs share them."""
    return 1024 if num_values <= 1 << 16 else 4096
