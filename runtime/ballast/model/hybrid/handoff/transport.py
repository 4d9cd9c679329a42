"""Copies activations to the experts in host memory, and results back, in the order of the device's queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Host memory that both sides access, pinned if the device has a queue."""

    inputs: torch.Tensor  # float32 [maximum tokens, D]
    ids: torch.Tensor  # int32 [maximum tokens, k]
    weights: torch.Tensor  # float32 [maximum tokens, k]
    results: torch.Tensor  # float32 [maximum tokens, D]


Send = Callable[[Mailbox, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Writes x float32 [T, D], ids int32 [T, k] and weights float32 [T, k] to the mailbox."""
Fetch = Callable[[Mailbox, int, torch.device], torch.Tensor]
"""Copies the results of T tokens to a device, float32 [T, D]."""


def carried(kernels: ModuleType) -> tuple[Send, Fetch]:
    """Transport by a GPU's kernels (`transport_kernels`), which access pinned memory: one launch per direction."""

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

    def fetch(mailbox: Mailbox, num_tokens: int, device: torch.device) -> torch.Tensor:
        out = torch.empty((num_tokens, mailbox.results.shape[1]), device=device)
        block = _block(out.numel())
        kernels.fetch[(-(-out.numel() // block),)](mailbox.results, out, out.numel(), BLOCK=block)
        return out

    return send, fetch


def _block(num_values: int) -> int:
    """Number of values that a program copies: fewer for few tokens, so that many programs share the work."""
    return 1024 if num_values <= 1 << 16 else 4096
