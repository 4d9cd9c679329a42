"""The limit of a GPU's memory, which torch's allocator enforces, and the message when it is reached."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ballast.errors import first_line
from ballast.host.gpu import taken_vram
from ballast.host.sizes import human

_REQUESTED = re.compile(r"Tried to allocate ([0-9.]+ (?:bytes|[KMG]iB))")


@dataclass(frozen=True, slots=True)
class VramLimit:
    """How much of a GPU's memory the process may take."""

    limit_bytes: int
    outside_bytes: int
    """The part of it outside torch's allocator: CUDA's context and libraries, compiled kernels, graphs."""

    @property
    def torch_bytes(self) -> int:
        """Bytes that torch's allocator may take."""
        return max(0, self.limit_bytes - self.outside_bytes)


def enforce(device: str, limit: VramLimit) -> None:
    """Bound what torch's allocator takes of "cuda:N". At the bound it first returns cached memory, then raises
    OutOfMemoryError."""
    import torch

    total_bytes = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit.torch_bytes / total_bytes), device)


def why_full(device: str, limit: VramLimit | None, error: BaseException) -> str:
    """torch's OutOfMemoryError as a sentence: what was requested, what is taken, what is allowed, and the way out."""
    found = _REQUESTED.search(str(error))
    request = first_line(error) if found is None else f"{found[1]} more wanted"
    _, taken_bytes = taken_vram(device)
    if limit is None:
        return (
            f"{device} is full: {request}, torch has taken {human(taken_bytes)}; stop what else uses it, or lower "
            "cache_lens, prefill_chunk_size or gpu_experts"
        )
    return (
        f"{device} is full: {request}, torch has taken {human(taken_bytes)} and may take {human(limit.torch_bytes)}, "
        f"vram_limit {human(limit.limit_bytes)} less {human(limit.outside_bytes)} for CUDA and graphs; raise "
        "vram_limit, stop what else uses the GPU, or lower cache_lens, prefill_chunk_size or gpu_experts"
    )
