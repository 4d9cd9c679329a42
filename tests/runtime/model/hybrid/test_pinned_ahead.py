"""Memory for the tier beside a GPU is taken while the model is loaded."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest
import torch

from ballast.engine.build import EngineSettings
from ballast.model.hybrid.copies.device_blocks import DeviceBlocks
from ballast.model.hybrid.copies.pinned_ahead import PinnedAhead
from ballast.model.tiers.host_tier import PIECE_BYTES, HostTier
from ballast.tiny import write_tiny_model
from support.cluster.waiting import wait_for
from support.models.float_experts import FloatExperts
from support.models.float_hybrid import float_linear, load_hybrid

SETTINGS = EngineSettings(
    cache_lens=64, max_batch_size=2, max_new_tokens=8, chunk_size=8, prefill_chunk_size=16, max_queue=2, block_tokens=16
)


class Taken:
    """Counts what is taken and given back; refuses after `most` pieces."""

    def __init__(self, most: int = 1000) -> None:
        self.num_bytes, self.held, self._most = 0, 0, most
        self.num_freed = 0
        self.threads: set[int] = set()

    def take(self, num_bytes: int) -> object:
        if self.num_bytes >= self._most * num_bytes:
            raise RuntimeError("CUDA error: out of memory\nadvice")
        self.num_bytes += num_bytes
        self.held += 1
        self.threads.add(threading.get_ident())
        return Piece(self)

    def free(self) -> None:
        self.num_freed += 1


class Piece:
    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    def __del__(self) -> None:
        self._taken.held -= 1


@pytest.mark.parametrize(("asked", "expected"), [(0, 0), (99, 0), (100, 100), (250, 200), (1000, 1000)])
def test_whole_pieces_are_taken_by_another_thread_and_given_back(asked: int, expected: int) -> None:
    taken = Taken()
    with PinnedAhead(asked, 100, taken.take, taken.free):
        pass
    assert taken.num_bytes == expected
    assert taken.held == 0
    assert threading.get_ident() not in taken.threads


@pytest.mark.parametrize(("asked", "expected"), [(99, 0), (100, 1)])
def test_the_thread_is_bound_to_a_device_where_there_is_something_to_take(asked: int, expected: int) -> None:
    taken, bound = Taken(), []
    with PinnedAhead(asked, 100, taken.take, taken.free, lambda: bound.append(threading.get_ident())):
        pass
    assert len(bound) == expected
    assert set(bound) == taken.threads


def test_what_is_refused_ends_it_quietly() -> None:
    taken = Taken(most=3)
    with PinnedAhead(1000, 100, taken.take, taken.free):
        pass
    assert (taken.num_bytes, taken.held) == (300, 0)


def test_a_load_that_fails_does_not_wait_for_all_of_it() -> None:
    taken, begun, failed = Taken(), threading.Event(), threading.Event()

    def take(num_bytes: int) -> object:
        begun.set()
        assert failed.wait(10)
        return taken.take(num_bytes)

    def loads() -> None:
        with PinnedAhead(1000, 100, take, taken.free):
            assert begun.wait(10)
            threading.Timer(0.1, failed.set).start()
            raise ValueError("a tensor is missing")

    with pytest.raises(ValueError, match="a tensor is missing"):
        loads()
    assert (taken.num_bytes, taken.held, taken.num_freed) == (100, 0, 1), "it stays with torch"


def test_who_times_something_waits_for_it_on_the_way() -> None:
    taken = Taken()
    bound: list[int] = []
    with PinnedAhead(1000, 100, taken.take, taken.free, lambda: bound.append(threading.get_ident())) as ahead:
        ahead.wait()
        assert (taken.num_bytes, taken.held) == (1000, 10), "others find nothing before the end"
        assert set(bound) == taken.threads
    assert (taken.held, taken.num_freed) == (0, 0)


def test_who_needs_it_more_has_it_given_back_while_it_is_taken() -> None:
    taken = Taken(most=10**9)
    with PinnedAhead(10**12, 100, taken.take, taken.free) as ahead:
        wait_for("some of it", lambda: taken.held)
        ahead.give_back()
        assert taken.num_bytes < 10**12
        assert (taken.held, taken.num_freed) == (0, 1)


def test_nothing_is_timed_before_the_memory_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told: list[str] = []

    def take(num_bytes: int) -> object:
        wait_for("weights to be loaded", lambda: "the cache holds all keys and latents" in caplog.messages)
        time.sleep(0.2)  # for what would be timed now
        told.extend(caplog.messages)
        return None

    with PinnedAhead(100, 100, take, lambda: None) as ahead:
        load_hybrid(
            write_tiny_model(tmp_path, arch="v3", quant="f32").gguf,
            torch.device("cpu"),
            SETTINGS,
            ahead=ahead,
            make_linear=float_linear,
            make_experts=FloatExperts,
            pcie_share=None,
        )
    assert told
    assert "PCIe share measured" not in told
    assert "PCIe share measured" in caplog.messages


@pytest.mark.gpu
def test_the_tier_finds_it_in_the_cache_of_torch() -> None:
    cache = DeviceBlocks([torch.zeros((64, 8192), dtype=torch.uint8, device="cuda")], 16)
    torch.accelerator.empty_host_cache()
    with PinnedAhead(2 * PIECE_BYTES, PIECE_BYTES):
        pass
    before = torch.cuda.host_memory_stats()["num_host_alloc"]
    tier = HostTier(cache, 2 * PIECE_BYTES)
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == before
    assert tier.num_blocks * tier.block_bytes == 2 * PIECE_BYTES
