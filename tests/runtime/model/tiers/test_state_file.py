"""Recurrent states in a folder belong to one write of a block, and are read only if complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast.engine.request import NO_SALT
from ballast.model.tiers.block_file import BlockFile
from ballast.model.tiers.state_file import HEAD

KEY = "0" * 32
BLOCK_BYTES, BLOCK_TOKENS, NUM_BLOCKS, STATE_BYTES = 6000, 16, 20, 9000


@contextmanager
def opened(folder: Path, num_states: int = 4) -> Iterator[BlockFile]:
    file = BlockFile(folder, KEY, NUM_BLOCKS, BLOCK_BYTES, BLOCK_TOKENS, num_states, STATE_BYTES)
    try:
        yield file
    finally:
        file.close()


def write(file: BlockFile, block: int, parent: int = 0, seed: int = 0) -> None:
    content = np.random.default_rng(block).integers(0, 256, BLOCK_BYTES, np.uint8)
    file.write(block, parent, np.full(BLOCK_TOKENS, block + seed, np.int32), NO_SALT, content)


def state(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, STATE_BYTES, np.uint8)


def read(file: BlockFile, number: int, block: int) -> NDArray[np.uint8] | None:
    found = np.empty(STATE_BYTES, np.uint8)
    return found if file.read_state(number, block, found) else None


def restored(folder: Path, num_states: int = 4) -> dict[int, int]:
    with opened(folder, num_states) as file:
        found = file.restored()
        return {block: state for block, state in zip(found.blocks.tolist(), found.states, strict=True) if state}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """3 → 5, with states 2 and 1."""
    with opened(tmp_path) as file:
        write(file, 3)
        write(file, 5, 3)
        file.write_state(2, 3, state(2))
        file.write_state(1, 5, state(1))
    return tmp_path


def test_another_process_finds_states(filled: Path) -> None:
    assert restored(filled) == {3: 2, 5: 1}
    with opened(filled) as file:
        assert np.array_equal(read(file, 2, 3), state(2))
        assert np.array_equal(read(file, 1, 5), state(1))
        assert read(file, 2, 5) is None
        assert read(file, 3, 3) is None


def test_a_state_is_lost_with_its_block(filled: Path) -> None:
    with opened(filled) as file:
        write(file, 5, 3, seed=40)
        assert read(file, 1, 5) is None
        file.drop(3)
        assert read(file, 2, 3) is None
    assert restored(filled) == {}


@pytest.mark.parametrize("lost", [5, None])
def test_a_state_is_not_found_after_other_tokens_in_its_block(filled: Path, lost: int | None) -> None:
    """Even if the block's header no longer has the number of that write: write numbers are never reused."""
    with opened(filled) as file:
        if lost is None:
            file.discard()
        else:
            file.drop(lost)
    with opened(filled) as file:
        for block in (3, 5) if lost is None else (lost,):
            write(file, block, seed=40)
    assert restored(filled) == ({} if lost is None else {3: 2})


def test_the_last_of_several_states_is_found(filled: Path) -> None:
    with opened(filled) as file:
        file.write_state(4, 3, state(4))
        file.write_state(1, 3, state(7))  # in the slot of the other block's state
    assert restored(filled) == {3: 1}
    with opened(filled) as file:
        assert np.array_equal(read(file, 1, 3), state(7))


def test_states_without_a_block_are_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.write_state(1, 3, state(1))
    assert restored(tmp_path) == {}


def test_fewer_states_keep_those_within(filled: Path) -> None:
    assert restored(filled, num_states=1) == {5: 1}


@pytest.mark.parametrize("field", HEAD.names or ())
def test_changed_heads_are_not_used(filled: Path, field: str) -> None:
    (folder,) = filled.iterdir()
    heads = np.fromfile(folder / "state-heads", HEAD)
    heads[field][1:3] ^= np.uint64(1 << 40) if heads[field].dtype.kind == "u" else 1 << 40
    heads.tofile(folder / "state-heads")
    assert restored(filled) == {}


def test_a_file_that_is_cut_short_loses_its_end(filled: Path) -> None:
    (folder,) = filled.iterdir()
    with (folder / "states").open("r+b") as file:
        file.truncate(STATE_BYTES + 10)
    assert restored(filled) == {5: 1}


def test_changed_contents_are_not_read(filled: Path) -> None:
    (folder,) = filled.iterdir()
    content = np.fromfile(folder / "states", np.uint8)
    content[100] ^= 1
    content.tofile(folder / "states")
    with opened(filled) as file:
        assert read(file, 1, 5) is None
        assert np.array_equal(read(file, 2, 3), state(2))
