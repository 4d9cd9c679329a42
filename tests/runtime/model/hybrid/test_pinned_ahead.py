"""Memory for the host tier of a GPU's cache is pinned while the model is loaded."""

from __future__ import annotations

import logging
import mmap
import threading
import time
import weakref

import numpy as np
import pytest
import torch

from ballast.engine.startup.build import EngineSettings
from ballast.host import machine
from ballast.host.machine import Memory
from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
from ballast.model.hybrid.copies.device_states import DeviceStates
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.hybrid.platforms import pinned_memory
from ballast.model.hybrid.platforms.interface import Bytes
from ballast.model.hybrid.platforms.pinned_memory import take_pinned
from ballast.model.hybrid.platforms.platform_of import platform_of
from ballast.model.tiers import host_tier
from ballast.model.tiers.cache_blocks import num_states_in
from ballast.model.tiers.host_tier import PIECE_BYTES, HostTier, piece_sizes
from devkit.cluster.waiting import wait_for
from devkit.models.float_experts import FloatExperts
from devkit.models.float_hybrid import load_hybrid
from devkit.models.written import MakeTiny

SETTINGS = EngineSettings(
    cache_lens=64, max_batch_size=2, max_new_tokens=8, chunk_size=8, prefill_chunk_size=16, max_queue=2, block_tokens=16
)


class Registered:
    """The memory that the GPU's driver was told to lock; refuses after `most` pieces."""

    def __init__(self, most: int = 1000) -> None:
        self.held: dict[int, int] = {}
        self.num_ever, self._most = 0, most

    def register(self, address: int, num_bytes: int) -> None:
        if self.num_ever == self._most:
            raise OSError("cuMemHostRegister failed with code 2")
        self.num_ever += 1
        self.held[address] = num_bytes

    def unregister(self, address: int) -> None:
        del self.held[address]


@pytest.mark.parametrize("num_bytes", [1, 4096, 10_000, 3 << 20])
def test_pinned_memory_is_locked_until_its_last_reference_ends(num_bytes: int) -> None:
    registered = Registered()
    memory = take_pinned(registered, num_bytes)
    assert memory.nbytes == num_bytes
    assert not memory.any()
    pages = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    assert registered.held == {memory.ctypes.data: pages}
    row = memory[num_bytes // 2 :].reshape(1, -1)
    del memory
    assert registered.held, "a view still refers to the memory"
    row[:] = 7
    del row
    assert registered.held == {}


def test_a_refusal_of_the_driver_is_a_memory_error() -> None:
    registered = Registered(most=0)
    with pytest.raises(MemoryError, match=r"8192 bytes of host memory were refused .*code 2"):
        take_pinned(registered, 8192)
    assert registered.held == {}


def test_unavailable_memory_is_refused_before_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system would return addresses, and kill the process when it uses them."""
    monkeypatch.setattr(pinned_memory, "read_memory", lambda: Memory(1 << 40, 1 << 20, None))
    take_pinned(Registered(), 1 << 20)
    with pytest.raises(MemoryError, match=r"1048577 bytes of host memory were refused \(1048576 are available\)"):
        take_pinned(Registered(), (1 << 20) + 1)
    monkeypatch.undo()
    assert 0 < machine.read_memory().available_bytes <= machine.read_memory().total_bytes


class Taken:
    """Allocates memory, and counts; refuses after `most` pieces."""

    def __init__(self, most: int = 1000) -> None:
        self.num_bytes, self.held, self._most = 0, 0, most
        self.threads: set[int] = set()

    def take(self, num_bytes: int) -> Bytes:
        if self.num_bytes >= self._most * num_bytes:
            raise MemoryError("8192 bytes of host memory were refused\nadvice")
        self.num_bytes += num_bytes
        self.held += 1
        self.threads.add(threading.get_ident())
        memory = np.zeros(num_bytes, np.uint8)
        weakref.finalize(memory, self._give_back)
        return memory

    def _give_back(self) -> None:
        self.held -= 1


@pytest.mark.parametrize("sizes", [[], [100], [100] * 10, [100, 100, 60, 60]], ids=str)
def test_another_thread_allocates_pieces_that_are_released(sizes: list[int]) -> None:
    taken = Taken()
    with PinnedAhead(sizes, taken.take) as ahead:
        ahead.wait()
    assert taken.num_bytes == sum(sizes)
    assert taken.held == 0
    assert threading.get_ident() not in taken.threads


@pytest.mark.parametrize("sizes", [[], [100]], ids=str)
def test_the_thread_is_bound_to_a_device_if_it_allocates_memory(sizes: list[int]) -> None:
    taken, bound = Taken(), []
    with PinnedAhead(sizes, taken.take, lambda: bound.append(threading.get_ident())) as ahead:
        ahead.wait()
    assert len(bound) == len(sizes)
    assert set(bound) == taken.threads


def test_take_returns_pre_pinned_memory_first_and_then_new_memory() -> None:
    taken = Taken()
    with PinnedAhead([100, 100], taken.take) as ahead:
        ahead.wait()
        pieces = [ahead.take(100), ahead.take(60)]
        assert [piece.nbytes for piece in pieces] == [100, 60]
        assert taken.num_bytes == 200
        pieces.append(ahead.take(30))
        assert taken.num_bytes == 230
    assert taken.held == 3
    with PinnedAhead([100], taken.take) as ahead:
        assert ahead.take(101).nbytes == 101, "longer than a piece"
        assert ahead.take(49).nbytes == 49, "most of a piece would be unused"
    assert taken.num_bytes == 230 + 100 + 101 + 49
    assert taken.held == 3


def test_the_smallest_piece_that_fits_is_used() -> None:
    taken = Taken()
    with PinnedAhead([100, 60, 60], taken.take) as ahead:
        got = [ahead.take(num_bytes) for num_bytes in (60, 55, 50, 50)]
        assert [piece.nbytes for piece in got] == [60, 55, 50, 50]
        assert taken.num_bytes == 220 + 50, "the fourth one is new"
    assert taken.held == 4


@pytest.mark.parametrize("num_floats", [75_000, 150_000, 40_000, 70_123 * 2])
@pytest.mark.parametrize("num_bytes", [9 << 20, (9 << 20) + 600_000, 12 << 20])
def test_a_tier_uses_all_memory_that_was_allocated_ahead(
    monkeypatch: pytest.MonkeyPatch, num_floats: int, num_bytes: int
) -> None:
    """And no more than it may, in which it holds as many states as the plan says."""
    monkeypatch.setattr(host_tier, "PIECE_BYTES", 1 << 20)
    taken, state_bytes = Taken(10**9), 4 * num_floats
    with PinnedAhead(piece_sizes(num_bytes, state_bytes), taken.take) as ahead:
        ahead.wait()
        in_advance = taken.num_bytes
        states = DeviceStates([[torch.zeros(3, num_floats)]], ahead.take)
        tier = HostTier(DeviceBlocks([torch.zeros(64, 128)], 16, ahead.take), num_bytes, states)
    assert tier.num_states == num_states_in(num_bytes, state_bytes) > 0
    used = tier.num_states * tier.state_bytes + tier.num_blocks * tier.block_bytes
    assert num_bytes - tier.block_bytes < used <= num_bytes
    assert taken.num_bytes <= num_bytes
    assert taken.num_bytes - in_advance < 1 << 20, "a shorter piece of blocks"


def test_a_refusal_ends_the_thread_without_an_error() -> None:
    taken = Taken(most=3)
    with PinnedAhead([100] * 10, taken.take) as ahead:
        ahead.wait()
        assert taken.held == 3
        got = [ahead.take(100) for _ in range(3)]
        with pytest.raises(MemoryError, match="refused"):
            ahead.take(100)
    assert (taken.num_bytes, taken.held) == (300, len(got))


def test_a_failing_load_does_not_wait_for_all_memory() -> None:
    taken, begun, failed = Taken(), threading.Event(), threading.Event()

    def take(num_bytes: int) -> Bytes:
        begun.set()
        assert failed.wait(10)
        return taken.take(num_bytes)

    def loads() -> None:
        with PinnedAhead([100] * 10, take):
            assert begun.wait(10)
            threading.Timer(0.1, failed.set).start()
            raise ValueError("a tensor is missing")

    with pytest.raises(ValueError, match="a tensor is missing"):
        loads()
    assert (taken.num_bytes, taken.held) == (100, 0)


def test_give_back_releases_memory_during_allocation() -> None:
    taken = Taken(most=10**9)
    with PinnedAhead([100] * 10**6, taken.take) as ahead:
        wait_for("some of it", lambda: taken.held)
        ahead.give_back()
        assert taken.num_bytes < 10**8
        assert taken.held == 0


def test_timing_starts_after_the_memory_is_pinned(written: MakeTiny, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reported: list[str] = []

    def take(num_bytes: int) -> Bytes:
        wait_for("weights to be loaded", lambda: "the cache holds all keys and latents" in caplog.messages)
        time.sleep(0.2)  # for anything that would be timed now
        reported.extend(caplog.messages)
        return np.zeros(num_bytes, np.uint8)

    with PinnedAhead([100], take) as ahead:
        load_hybrid(
            written(arch="v3", quant="f32").gguf,
            torch.device("cpu"),
            SETTINGS,
            ahead=ahead,
            make_experts=FloatExperts,
            pcie_share=None,
        )
    assert reported
    assert "PCIe share measured" not in reported
    assert "PCIe share measured" in caplog.messages


@pytest.mark.gpu
def test_the_tier_gets_pre_pinned_memory_that_a_gpu_copies() -> None:
    rows = torch.arange(64 * 8192, device="cuda").to(torch.uint8).view(64, 8192)
    with PinnedAhead(piece_sizes(2 * PIECE_BYTES), platform_of(rows.device).host_memory()) as ahead:
        cache = DeviceBlocks([rows], 16, ahead.take)
        tier = HostTier(cache, 2 * PIECE_BYTES)
    assert tier.num_blocks * tier.block_bytes == 2 * PIECE_BYTES
    memory = cache.new_memory(1)
    assert torch.from_numpy(memory).is_pinned()
    wait_for("the copy", cache.copy_out([2], list(memory)).query)
    assert np.array_equal(memory[0], rows[32:48].cpu().numpy().ravel())
