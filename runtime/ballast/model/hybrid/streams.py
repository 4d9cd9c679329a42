"""Queues of work on a device besides its default one."""

from __future__ import annotations

import torch


def new_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream | None:
    """A stream of its own; None for a device without queues. Work of a lower `priority` number goes first; 0 is that of
    the default stream."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]  # torch has no types for it
