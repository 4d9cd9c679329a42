"""A folder of KV blocks: complete blocks are read and incomplete ones are not, however the writing process ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ballast.engine.request import NO_SALT
from ballast.model.tiers.block_file import BlockFile, BlockFileError, head_type, kept_bytes, remove_others
from ballast.model.tiers.file_heads import stride_of

KEY, OTHER = "0" * 32, "1" * 32
BLOCK_BYTES, BLOCK_TOKENS, NUM_BLOCKS = 6000, 16, 20


def tokens(number: int) -> NDArray[np.int32]:
    return np.arange(number * 100, number * 100 + BLOCK_TOKENS, dtype=np.int32)


def content(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, np.uint8)


@contextmanager
def opened(folder: Path, key: str = KEY, num_blocks: int = NUM_BLOCKS) -> Iterator[BlockFile]:
    file = BlockFile(folder, key, num_blocks, BLOCK_BYTES, BLOCK_TOKENS)
    try:
        yield file
    finally:
        file.close()


def filled(folder: Path) -> Path:
    """3 → 5 → 7 and 3 → 6, written in the order 3, 5, 6, 7."""
    with opened(folder) as file:
        for block, parent in ((3, 0), (5, 3), (6, 3), (7, 5)):
            file.write(block, parent, tokens(block), NO_SALT, content(block))
        return file.path


def restored(folder: Path) -> list[int]:
    with opened(folder) as file:
        return file.restored().blocks.tolist()


def read(file: BlockFile, block: int) -> NDArray[np.uint8] | None:
    found = np.empty(BLOCK_BYTES, np.uint8)
    return found if file.read(block, found) else None


def test_another_process_finds_written_blocks(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path) as file:
        found = file.restored()
        assert found.blocks.tolist() == [6, 7, 5, 3], "children first, and the block written last comes last"
        assert found.parents.tolist() == [3, 5, 3, 0]
        assert np.array_equal(found.tokens.reshape(-1, BLOCK_TOKENS)[1], tokens(7))
        for block in (3, 5, 6, 7):
            assert np.array_equal(read(file, block), content(block))
        assert read(file, 1) is None


def test_blocks_are_restored_with_their_salts(tmp_path: Path) -> None:
    salt = (2**64 - 1, 7)
    with opened(tmp_path) as file:
        file.write(3, 0, tokens(3), salt, content(3))
        file.write(5, 3, tokens(5), salt, content(5))
        file.write(6, 0, tokens(3), NO_SALT, content(6))
    with opened(tmp_path) as file:
        found = file.restored()
    assert dict(zip(found.blocks.tolist(), map(tuple, found.salts.tolist()), strict=True)) == {
        3: salt,
        5: salt,
        6: NO_SALT,
    }


def test_blocks_after_an_overwritten_block_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path) as file:
        file.write(5, 0, tokens(50), NO_SALT, content(50))
    assert restored(tmp_path) == [6, 3, 5]


def test_blocks_after_a_rewritten_block_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path) as file:
        file.write(5, 3, tokens(5), NO_SALT, content(5))
    assert restored(tmp_path) == [6, 5, 3], "7 was written after another block 5"


def test_a_dropped_block_also_drops_its_successors(tmp_path: Path) -> None:
    filled(tmp_path)
    with opened(tmp_path) as file:
        file.drop(3)
        assert read(file, 3) is None
    assert restored(tmp_path) == []


@pytest.mark.parametrize("at", [0, 8, 16, 24, 40, 100])
def test_a_damaged_head_is_not_believed(tmp_path: Path, at: int) -> None:
    heads = filled(tmp_path) / "heads"
    data = bytearray(heads.read_bytes())
    data[5 * head_type(BLOCK_TOKENS).itemsize + at] ^= 0x10
    heads.write_bytes(data)
    assert restored(tmp_path) == [6, 3]


def test_damaged_content_is_found_when_it_is_read(tmp_path: Path) -> None:
    contents = filled(tmp_path) / "contents"
    data = bytearray(contents.read_bytes())
    data[4 * stride_of(BLOCK_BYTES) + 4321] ^= 1
    contents.write_bytes(data)
    with opened(tmp_path) as file:
        assert read(file, 5) is None
        assert np.array_equal(read(file, 7), content(7))


@pytest.mark.parametrize(("num_left", "expected"), [(0, []), (3, [3]), (6, [5, 6, 3]), (7, [6, 7, 5, 3])])
@pytest.mark.parametrize("name", ["heads", "contents"])
def test_a_truncated_file_keeps_its_remaining_blocks(
    tmp_path: Path, name: str, num_left: int, expected: list[int]
) -> None:
    path = filled(tmp_path) / name
    left = (num_left + 1) * head_type(BLOCK_TOKENS).itemsize if name == "heads" else num_left * stride_of(BLOCK_BYTES)
    os.truncate(path, left + 5)
    with opened(tmp_path) as file:
        assert file.restored().blocks.tolist() == expected
        for block in expected:
            assert np.array_equal(read(file, block), content(block))


def test_files_of_noise_contain_no_blocks(tmp_path: Path) -> None:
    path = filled(tmp_path)
    noise = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8).tobytes()
    for name in ("heads", "contents"):
        (path / name).write_bytes(noise)
    assert restored(tmp_path) == []


def test_a_smaller_limit_keeps_blocks_within_it(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with opened(tmp_path, num_blocks=6) as file:
        assert file.restored().blocks.tolist() == [5, 6, 3]
    assert (path / "contents").stat().st_size == 6 * stride_of(BLOCK_BYTES)
    assert restored(tmp_path) == [5, 6, 3]


def test_a_folder_serves_one_process_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(BlockFileError, match="another process is using it"):
        BlockFile(tmp_path, KEY, NUM_BLOCKS, BLOCK_BYTES, BLOCK_TOKENS)
    with opened(tmp_path):
        pass


def test_other_sets_are_removed_unless_in_use(tmp_path: Path) -> None:
    (tmp_path / "ballast-kv-notes").mkdir()
    (tmp_path / "letters").write_text("mine")
    with opened(tmp_path, OTHER) as used:
        remove_others(tmp_path, KEY)
        assert used.path.exists()
    (tmp_path / f"ballast-kv-{'3' * 32}").mkdir()  # its removal was interrupted
    remove_others(tmp_path, KEY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ballast-kv-notes", "letters"]


def test_only_the_own_set_counts_towards_the_limit(tmp_path: Path) -> None:
    assert kept_bytes(tmp_path, KEY) == 0
    with opened(tmp_path, OTHER) as other:
        other.write(1, 0, tokens(1), NO_SALT, content(1))
        assert kept_bytes(tmp_path, KEY) == 0
    with opened(tmp_path) as own:
        own.write(1, 0, tokens(1), NO_SALT, content(1))
        assert kept_bytes(tmp_path, KEY) >= BLOCK_BYTES


def test_a_file_writable_by_others_is_rejected(tmp_path: Path) -> None:
    path = filled(tmp_path)
    (path / "heads").chmod(0o666)
    with pytest.raises(BlockFileError, match="only that user may write there"):
        restored(tmp_path)
    (path / "heads").unlink()
    (path / "heads").symlink_to(path / "contents")
    with pytest.raises(OSError, match="symbolic links"):
        restored(tmp_path)


def test_a_folder_that_others_could_write_to_is_emptied(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.chmod(0o770)
    for name in ("heads", "contents"):
        (path / name).chmod(0o660)
    assert restored(tmp_path) == []
    assert path.stat().st_mode & 0o777 == 0o700
    filled(tmp_path)
    assert restored(tmp_path) == [6, 7, 5, 3]


def test_a_write_without_disk_space_leaves_nothing_behind(tmp_path: Path) -> None:
    filled(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * stride_of(BLOCK_BYTES) + 100, hard))
        try:
            with pytest.raises(OSError, match="too large"):
                file.write(7, 5, tokens(70), NO_SALT, content(70))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert read(file, 7) is None
    assert restored(tmp_path) == [5, 6, 3]


KILLED_WRITER = """
    import sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from runtime.model.tiers import test_block_file as test
    file = test.BlockFile(Path({folder!r}), test.KEY, test.NUM_BLOCKS, test.BLOCK_BYTES, test.BLOCK_TOKENS)
    print("ready", flush=True)
    number = 0
    while True:
        block = 1 + number % test.NUM_BLOCKS
        file.write(block, 0, test.tokens(number), test.NO_SALT, test.content(number))
        number += 1
"""


def test_a_process_killed_during_a_write_leaves_complete_blocks(tmp_path: Path) -> None:
    code = KILLED_WRITER.format(tests=str(Path(__file__).parents[3]), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        while kept_bytes(tmp_path, KEY) < NUM_BLOCKS * stride_of(BLOCK_BYTES):
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
    with opened(tmp_path) as file:
        found = file.restored()
        assert len(found.blocks) >= NUM_BLOCKS - 1, "all except the block that was being written"
        for block, own in zip(found.blocks.tolist(), found.tokens.reshape(-1, BLOCK_TOKENS), strict=True):
            assert np.array_equal(read(file, block), content(int(own[0]) // 100))
