"""A device's disk tier: slow copies, failed copies, and the inputs of its folder's name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ballast._core import sched
from ballast.engine.request import NO_SALT
from ballast.model.tiers import disk_folder, disk_tier
from ballast.model.tiers.block_file import BlockFile
from ballast.model.tiers.cache_blocks import DONE, Bytes
from ballast.model.tiers.disk_tier import DiskTier
from ballast.model.tiers.tier import Fetched
from ballast.weights.gguf import open_gguf
from devkit.cluster.waiting import wait_for
from devkit.models.written import write_tiny_model

BLOCK_BYTES, BLOCK_TOKENS, NUM_BLOCKS = 4096, 4, 8


class Device:
    """A cache whose copies to the device complete when the test allows it, or fail."""

    block_bytes, layout = BLOCK_BYTES, "a test's"

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.has_begun = threading.Event()
        self.error: Exception | None = None
        self.copied: Callable[[int], bool] = lambda block: False
        """Blocks whose copies complete before `may_end`."""

    def new_memory(self, num_blocks: int) -> Bytes:
        return np.zeros((num_blocks, BLOCK_BYTES), np.uint8)

    def copy_out(self, blocks: Sequence[int], to: Sequence[Bytes], windows: Sequence[int] = ()) -> Any:
        return DONE

    def copy_in(self, blocks: Sequence[int], sources: Sequence[Bytes], windows: Sequence[int] = ()) -> Any:
        self.has_begun.set()
        if self.error is not None:
            raise self.error
        return SimpleNamespace(query=lambda: self.may_end.is_set() or all(map(self.copied, blocks)))


def moved(tier_block: int, block: int, tier_state: int = 0, state: int = 0) -> sched.Transfer:
    tokens = np.arange(BLOCK_TOKENS, dtype=np.int32)
    ids = {"tier_block": tier_block, "block": block, "window_block": 0, "parent": tier_block - 1}
    ids |= {"tier_state": tier_state, "state": state}
    return cast(sched.Transfer, SimpleNamespace(**ids, tokens=tokens, salt=NO_SALT))


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def tier(device: Device, tmp_path: Path) -> Any:
    file = BlockFile(tmp_path, "1" * 32, NUM_BLOCKS, BLOCK_BYTES, BLOCK_TOKENS)
    made = DiskTier(file, device, 4, lambda: None)
    made.store([moved(1, 1), moved(2, 2)])
    wait_for("both to be written", lambda: len(made._free_rows) == 4)
    assert made.poll().stored == [True, True]
    yield made
    device.may_end.set()
    made.close(30)


def test_copies_to_the_cache_do_not_block_requests(device: Device, tier: DiskTier) -> None:
    tier.fetch(7, [moved(1, 5), moved(2, 6)])
    assert device.has_begun.wait(30)
    assert tier.poll().fetched == []
    tier.cancel(7)
    assert tier.poll().fetched == [], "the device is still writing to its blocks"
    device.may_end.set()
    assert wait_for("its end", lambda: tier.poll().fetched) == [Fetched(7, 2)]


def test_pending_blocks_are_reported(device: Device, tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "READ_AT_ONCE", 1)
    tier.fetch(7, [moved(1, 5), moved(2, 6)])
    tier.fetch(8, [moved(1, 7)])
    assert device.has_begun.wait(30)
    assert tier.poll().coming == [(7, 2), (8, 1)]
    device.copied = lambda block: block != 6
    wait_for("the first block", lambda: tier.poll().coming == [(7, 1), (8, 1)])


def test_damaged_blocks_are_distinguished_from_cancelled_fetches(
    device: Device, tier: DiskTier, tmp_path: Path
) -> None:
    contents = np.memmap(next(tmp_path.glob("*/contents")), np.uint8, mode="r+")
    contents[BLOCK_BYTES] ^= 1  # in the second block
    contents.flush()
    device.may_end.set()
    tier.fetch(7, [moved(1, 5), moved(2, 6)])
    assert wait_for("its end", lambda: tier.poll().fetched) == [Fetched(7, 1, is_damaged=True)]
    device.may_end.clear()
    device.has_begun.clear()
    tier.fetch(8, [moved(1, 5), moved(2, 6)])
    assert device.has_begun.wait(30)
    tier.fetch(9, [moved(1, 5), moved(2, 6)])
    tier.cancel(9)
    assert tier.poll().fetched == [Fetched(9, 0)]


class States:
    """The slots of a device, whose copies are done at once."""

    state_bytes, layout = 2 * BLOCK_BYTES, "a test's"

    def new_memory(self, num_states: int) -> Bytes:
        return np.zeros((num_states, self.state_bytes), np.uint8)

    def copy_out(self, slots: Sequence[int], to: Sequence[Bytes]) -> Any:
        for slot, row in zip(slots, to, strict=True):
            row[:] = slot
        return DONE

    def copy_in(self, slots: Sequence[int], sources: Sequence[Bytes]) -> Any:
        return DONE

    def before_writing(self, slots: Sequence[int], alive: Callable[[], None]) -> None:
        """Nothing is copied any more."""


@pytest.mark.parametrize("fails", [False, True])
def test_damaged_states_are_dropped_and_their_blocks_remain(device: Device, tmp_path: Path, fails: bool) -> None:
    """If the copies of the blocks before fail, they are not reported as whole."""
    sizes = NUM_BLOCKS, BLOCK_BYTES, BLOCK_TOKENS, 3, States.state_bytes
    made = DiskTier(BlockFile(tmp_path, "1" * 32, *sizes), device, 4, lambda: None, States(), 2)
    made.store([moved(1, 1), moved(2, 2)])
    made.store_states([moved(1, 0, 1, 5), moved(2, 0, 2, 6)])
    wait_for("all to be written", lambda: (len(made._free_rows), len(made._free_state_rows)) == (4, 2))
    contents = np.memmap(next(tmp_path.glob("*/states")), np.uint8, mode="r+")
    contents[States.state_bytes] ^= 1  # of the second state
    contents.flush()
    device.may_end.set()
    device.error = RuntimeError("the device refuses") if fails else None
    made.fetch(7, [moved(1, 5), moved(2, 6, 2, 3)])
    expected = Fetched(7, 0) if fails else Fetched(7, 1, is_state_damaged=True)
    assert wait_for("its end", lambda: made.poll().fetched) == [expected]
    made.close(30)
    file = BlockFile(tmp_path, "1" * 32, *sizes)
    found = file.restored()
    assert dict(zip(found.blocks.tolist(), found.states, strict=True)) == {1: 1, 2: 0}
    file.close()


def test_a_sequence_that_fetches_again_during_its_first_read_is_reported_once(
    device: Device, tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preempted after its first fetch was cancelled, it requests the same blocks."""
    read, is_reading, goes_on = tier._file.read, threading.Event(), threading.Event()

    def slow(block: int, into: Bytes) -> bool:
        is_reading.set()
        assert goes_on.wait(30)
        return read(block, into)

    monkeypatch.setattr(tier._file, "read", slow)
    device.may_end.set()
    tier.fetch(7, [moved(1, 5)])
    assert is_reading.wait(30)
    tier.cancel(7)
    assert tier.poll().fetched == [Fetched(7, 0)]
    tier.fetch(7, [moved(1, 6), moved(2, 7)])
    tier.fetch(8, [moved(1, 5)])
    goes_on.set()
    ends: list[Fetched] = []

    def has_last() -> bool:
        ends.extend(tier.poll().fetched)
        return Fetched(8, 1) in ends

    wait_for("the last", has_last)
    assert ends == [Fetched(7, 2), Fetched(8, 1)]


def test_blocks_that_cannot_be_copied_are_computed(
    device: Device, tier: DiskTier, caplog: pytest.LogCaptureFixture
) -> None:
    device.error = RuntimeError("the device is full")
    tier.fetch(7, [moved(1, 5)])
    assert wait_for("its end", lambda: tier.poll().fetched) == [Fetched(7, 0)]
    assert [vars(record)["why"] for record in caplog.records] == ["the device is full"]
    device.error = None
    device.may_end.set()
    tier.fetch(8, [moved(1, 5)])
    assert wait_for("the next", lambda: tier.poll().fetched) == [Fetched(8, 1)]


def test_blocks_computed_differently_have_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = open_gguf(write_tiny_model(tmp_path / "model", arch="v3", mla="split", quant="f32").gguf)
    assert (disk_folder.SOURCES / "rope.py").is_file()
    monkeypatch.setattr(disk_folder, "SOURCES", tmp_path)
    keys = set()
    for text in ("one = 1", "one = 2", "one = 1"):
        (tmp_path / "rope.py").write_text(text)
        keys.add(disk_folder.cache_key(gguf, Device(), BLOCK_TOKENS, ()))
    assert len(keys) == 2
