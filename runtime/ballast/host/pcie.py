"""How fast a GPU's bus is, measured. torch is imported when it is."""

from __future__ import annotations

import statistics
import time

COPIED_BYTES = 256 << 20
_REPEATS = 5


def copy_bytes_per_s(device: str) -> float:
    """The rate at which pinned memory is copied to "cuda:N": the median of some copies. Raises RuntimeError, as torch
    does, where the device or memory is not there."""
    import torch

    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(_REPEATS + 1):  # the first copy warms up
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return COPIED_BYTES / statistics.median(seconds[1:])
