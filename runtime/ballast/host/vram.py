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
    """The memory of a GPU that the process may use."""

    limit_bytes: int
    outside_bytes: int
    """The part of it outside torch's allocator: CUDA's context and libraries, compiled kernels, graphs."""

    @property
    def torch_bytes(self) -> int:
        """Bytes that torch's allocator may use."""
        return max(0, self.limit_bytes - self.outside_bytes)


def enforce(device: str, limit: VramLimit) -> None:
    """Limit torch's allocator on "cuda:N". At the limit it first frees cached memory, then raises OutOfMemoryError."""
    import torch

    total_bytes = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit.torch_bytes / total_bytes), device)


def why_full(device: str, limit: VramLimit | None, error: BaseException) -> str:
    """torch's OutOfMemoryError as a sentence: the request, the memory in use, the limit, and the fix."""
    found = _REQUESTED.search(str(error))
    request = first_line(error) if found is None else f"{found[1]} more wanted"
    _, taken_bytes = taken_vram(device)
    if limit is None:
        return (
            f"{device} is full: {request}, torch uses {human(taken_bytes)}; stop other programs that use it, or lower "
            "cache_lens, prefill_chunk_size or gpu_experts"
        )
    return (
        f"{device} is full: {request}, torch uses {human(taken_bytes)} and may use {human(limit.torch_bytes)}, "
        f"vram_limit {human(limit.limit_bytes)} less {human(limit.outside_bytes)} for CUDA and graphs; raise "
        "vram_limit, stop other programs that use the GPU, or lower cache_lens, prefill_chunk_size or gpu_experts"
    )
