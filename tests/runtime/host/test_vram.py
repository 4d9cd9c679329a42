"""The message when a GPU's memory is full, and the limit that torch's allocator enforces."""

from __future__ import annotations

import pytest
import torch

from ballast.host.gpu import taken_vram
from ballast.host.vram import VramLimit, enforce, why_full

GIB = 1 << 30
OF_TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.72 GiB of which 1.00 GiB is "
    "free. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF"
)


def test_a_full_gpu_is_reported_with_all_numbers_and_a_fix() -> None:
    error = torch.OutOfMemoryError(OF_TORCH)
    assert why_full("cuda:0", VramLimit(24 * GIB, GIB // 2), error) == (
        "cuda:0 is full: 20.00 MiB more wanted, torch uses 0 B and may use 23.5 GiB, vram_limit 24.0 GiB less "
        "512.0 MiB for CUDA and graphs; raise vram_limit, stop other programs that use the GPU, or lower cache_lens, "
        "prefill_chunk_size or gpu_experts"
    )
    assert why_full("cuda:0", None, error) == (
        "cuda:0 is full: 20.00 MiB more wanted, torch uses 0 B; stop other programs that use it, or lower cache_lens, "
        "prefill_chunk_size or gpu_experts"
    )
    assert VramLimit(GIB, 2 * GIB).torch_bytes == 0


@pytest.mark.gpu
def test_torch_is_limited_to_the_remaining_memory() -> None:
    torch.cuda.empty_cache()
    _, taken = taken_vram("cuda:0")
    enforce("cuda:0", VramLimit(taken + GIB + (256 << 20), GIB))
    try:
        torch.empty(128 << 20, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(512 << 20, dtype=torch.uint8, device="cuda:0")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "512.00 MiB more wanted, torch uses " in why_full("cuda:0", VramLimit(4 * GIB, GIB), raised.value)
