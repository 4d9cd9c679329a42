"""Small copies from pinned memory, by Triton's interpreter, and on a GPU if there is one."""

from __future__ import annotations

import time

import pytest
import torch

from ballast.model.hybrid.copies import small_copy_kernels
from ballast.model.hybrid.copies.small_copies import BLOCK_WORDS, SmallCopy, carried
from ballast.model.hybrid.startup.parallel_compile import parallel_compile
from devkit.kernels.interpreted import interpreted

LARGE_BYTES = 256 << 20


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[SmallCopy, torch.device]:
    """A way to copy, and where to."""
    if request.param == "interpreter":
        return carried(interpreted(small_copy_kernels, monkeypatch)), torch.device("cpu")
    return carried(small_copy_kernels), torch.device("cuda:0")


@pytest.mark.parametrize("count", [1, 3, BLOCK_WORDS, BLOCK_WORDS + 1, 5 * BLOCK_WORDS - 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.uint8])
def test_copies_are_complete_and_change_nothing_else(
    way: tuple[SmallCopy, torch.device], count: int, dtype: torch.dtype
) -> None:
    copy, device = way
    count *= 4 // dtype.itemsize
    host = (torch.arange(count + 8) % 251).to(dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    out = torch.full_like(host, 77, device=device)
    copy(host[:count], out[:count])
    assert torch.equal(out[:count].cpu(), host[:count])
    assert (out[count:] == 77).all()


def test_a_copy_is_made_where_launches_only_compile(way: tuple[SmallCopy, torch.device]) -> None:
    """flashinfer's kernels, which are no Triton's, run there and read the plan that is copied."""
    copy, device = way
    host = torch.arange(64, dtype=torch.int32)
    if device.type == "cuda":
        host = host.pin_memory()
    out = torch.zeros_like(host, device=device)
    with parallel_compile(lambda: None, lambda _: None):
        copy(host, out)
    assert torch.equal(out.cpu(), host)


@pytest.mark.gpu
def test_a_small_copy_does_not_wait_for_large_copies_of_another_stream() -> None:
    device = torch.device("cuda:0")
    copy, aside = carried(small_copy_kernels), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types for it
    large, small = torch.empty(LARGE_BYTES, dtype=torch.uint8).pin_memory(), torch.arange(64).int().pin_memory()
    target, out = torch.empty_like(large, device=device), torch.zeros(64, dtype=torch.int32, device=device)
    copy(small, out)  # compiled
    out.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(aside):
        for _ in range(16):
            target.copy_(large, non_blocking=True)
        streamed = aside.record_event()
    copy(small, out)
    done = torch.cuda.current_stream().record_event()
    for _ in range(10_000):
        if done.query():
            break
        time.sleep(1e-5)
    assert not streamed.query()
    assert torch.equal(out.cpu(), small)
