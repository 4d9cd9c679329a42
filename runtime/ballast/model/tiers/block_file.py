"""Blocks of a KV cache in a folder: a file of heads, which say what each block holds, and a file of contents.

A block is a place of its own in both files. Its head has the number of the write, the block with the tokens before and
the number of that one's write, so what was written over or lost takes what follows it along; and checksums, of the head
and of the content. Whatever ends a process, or cuts a file short, leaves at most heads and contents that do not match.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.model.tiers.file_heads import (
    num_contents,
    read_content,
    read_heads,
    stride_of,
    sum_of,
    write_all,
    write_content,
)
from ballast.model.tiers.state_file import StateFile
from ballast.model.tiers.tier import NOTHING, Restored

log = logging.getLogger(__name__)

FORMAT_VERSION = 4

_PREFIX = "ballast-kv-"
_SET_NAME = re.compile(_PREFIX + "[0-9a-f]{32}")
_LOCK, _HEADS, _CONTENTS, _STATE_HEADS, _STATES = "lock", "heads", "contents", "state-heads", "states"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class BlockFileError(Exception):
    """Why a folder cannot keep blocks, with its name."""


def head_type(block_tokens: int) -> np.dtype[np.void]:
    """One head in the file's format; `write` is 0 for an empty slot."""
    return np.dtype(
        [
            ("write", "<u8"),
            ("parent_write", "<u8"),
            ("content_sum", "<u8"),
            ("salt", "<u8", (2,)),
            ("parent", "<i4"),
            ("has_window", "<i4"),
            ("tokens", "<i4", (block_tokens,)),
            ("sum", "<u8"),
        ]
    )


class BlockFile:
    """The blocks of one model in one layout, for one process at a time. A block is used by one thread at a time."""

    def __init__(
        self,
        folder: Path,
        key: str,
        num_blocks: int,
        block_bytes: int,
        block_tokens: int,
        num_states: int = 0,
        state_bytes: int = 0,
    ) -> None:
        """Opens the set `key`, 32 hexadecimal digits, in `folder`, and makes it where there is none. `num_states`:
        recurrent states that it can keep. Raises OSError and BlockFileError."""
        self.path = folder / f"{_PREFIX}{key}"
        self.num_blocks, self.num_states = num_blocks, num_states
        self._block_bytes = block_bytes
        self._type = head_type(block_tokens)
        self._files: list[int] = []
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            self._folder = self._own(os.open(self.path, flags), is_folder=True)
            if os.fstat(self._folder).st_mode & _OTHERS_MAY_WRITE:
                # A volume may be like this when a pod first mounts it. Other users may have written its content.
                for name in (_HEADS, _CONTENTS, _STATE_HEADS, _STATES, _LOCK):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=self._folder)
                os.fchmod(self._folder, 0o700)
            lock = self._open(_LOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockFileError(f"{self.path}: another process is using it") from None
            if os.fstat(lock).st_nlink == 0:
                raise BlockFileError(f"{self.path}: another process has just removed it")
            self._heads_file, self._contents_file = self._open(_HEADS), self._open(_CONTENTS)
            self._heads = self._read_heads()
            self._states: StateFile | None = None
            if num_states:
                files = self._open(_STATE_HEADS), self._open(_STATES)
                self._states = StateFile(*files, num_states, state_bytes)
        except BaseException:
            self.close()
            raise
        # A state may remain of a later write, whose head has gone. It must not become the state of another one.
        of_state = 0 if self._states is None else self._states.last_block_write
        self._last_write = max(of_state, int(self._heads["write"].max()))

    def restored(self) -> Restored:
        """The stored blocks, in the order of eviction: oldest write first. Content is checked when it is read."""
        heads, order = self._heads, self._chained()
        latest = heads["write"].copy()
        depth = np.zeros(len(heads), np.int64)
        for block in order:  # parents first
            depth[block] = depth[heads["parent"][block]] + 1
        for block in reversed(order):
            parent = heads["parent"][block]
            latest[parent] = max(latest[parent], latest[block])
        order.sort(key=lambda block: (latest[block], -depth[block]))
        if not order:
            return NOTHING
        blocks = np.array(order, np.int32)
        states = {} if self._states is None else self._states.of_blocks(heads["write"])
        return Restored(
            blocks,
            heads["parent"][blocks].astype(np.int32),
            heads["tokens"][blocks].astype(np.int32).ravel(),
            heads["salt"][blocks].astype(np.uint64),
            (heads["has_window"][blocks] != 0).tolist(),
            [states.get(block, 0) for block in order],
        )

    def write(
        self,
        block: int,
        parent: int,
        tokens: NDArray[np.int32],
        salt: tuple[int, int],
        content: NDArray[np.uint8],
        has_window: bool = False,
    ) -> None:
        """Write a block [block_bytes]. `has_window`: see `Restored.have_windows`. Raises OSError; then the block holds
        nothing."""
        self.drop(block)
        write_content(self._contents_file, block, content)
        head = self._heads[block : block + 1]
        self._last_write += 1
        head["write"], head["parent"], head["tokens"], head["salt"] = self._last_write, parent, tokens, salt
        head["has_window"] = has_window
        head["parent_write"] = self._heads["write"][parent] if parent else 0
        head["content_sum"] = kernels.checksum(content)
        head["sum"] = sum_of(head)
        try:
            write_all(self._heads_file, head.tobytes(), block * self._type.itemsize)
        except OSError:
            head["write"] = 0
            raise

    def read(self, block: int, content: NDArray[np.uint8]) -> bool:
        """Fill `content` [block_bytes] with what a block holds; False where that is damaged. Raises OSError."""
        if not read_content(self._contents_file, block, content):
            return False
        head = self._heads[block]
        return bool(head["write"]) and kernels.checksum(content) == int(head["content_sum"])

    def write_state(self, state: int, block: int, content: NDArray[np.uint8]) -> None:
        """Write the recurrent state after a block [state_bytes]. Raises OSError; then there is none."""
        if self._states is not None and self._heads["write"][block]:
            self._states.write(state, block, int(self._heads["write"][block]), content)

    def read_state(self, state: int, block: int, content: NDArray[np.uint8]) -> bool:
        """Fill `content` [state_bytes] with the state after a block; False where that is damaged. Raises OSError."""
        block_write = int(self._heads["write"][block])
        return self._states is not None and self._states.read(state, block, block_write, content)

    def drop_state(self, state: int) -> None:
        """There is no such state, on disk as well. Raises OSError."""
        if self._states is not None:
            self._states.drop(state)

    def drop(self, block: int) -> None:
        """A block holds nothing, on disk as well. Raises OSError."""
        self._heads["write"][block] = 0
        write_all(self._heads_file, bytes(self._type.itemsize), block * self._type.itemsize)

    def discard(self) -> None:
        """Nothing of what is there is found again."""
        with suppress(OSError):
            os.ftruncate(self._heads_file, 0)

    def close(self) -> None:
        """Give the folder back."""
        for file in reversed(self._files):
            os.close(file)
        self._files.clear()

    def _chained(self) -> list[int]:
        """Blocks that are whole up to the start of their prompt, parents first."""
        heads = self._heads
        parents, known = heads["parent"], {0}
        order: list[int] = []
        # A parent was written before its children.
        for block in np.argsort(heads["write"], kind="stable").tolist():
            parent = int(parents[block])
            if heads["write"][block] == 0 or parent not in known:
                continue
            if parent == 0 or heads["write"][parent] == heads["parent_write"][block]:
                known.add(block)
                order.append(block)
        return order

    def _read_heads(self) -> NDArray[np.void]:
        """[num_blocks + 1], zeros where there is nothing whole. The files are cut or grown to what is asked for."""
        there = num_contents(self._contents_file, self._block_bytes)
        heads = read_heads(self._heads_file, self._type, self.num_blocks, there)
        has_parent = (heads["parent"] >= 0) & (heads["parent"] <= self.num_blocks)
        heads[~has_parent] = np.zeros(1, self._type)
        os.ftruncate(self._contents_file, self.num_blocks * stride_of(self._block_bytes))
        return heads

    def _open(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        return self._own(os.open(name, flags, mode=0o600, dir_fd=self._folder), is_folder=False)

    def _own(self, file: int, *, is_folder: bool) -> int:
        """The file, which is closed in the end. What others could have put there is refused."""
        self._files.append(file)
        found = os.fstat(file)
        if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(found.st_mode):
            raise BlockFileError(f"{self.path}: expected a folder with files")
        if found.st_uid != os.geteuid() or (not is_folder and found.st_mode & _OTHERS_MAY_WRITE):
            raise BlockFileError(f"{self.path}: must belong to user {os.geteuid()}, and only that user may write there")
        return file


def remove_others(folder: Path, key: str) -> None:
    """Remove the user's sets in `folder`, but for `key`, that no process uses. One that cannot be removed stays. Raises
    OSError where the folder cannot be read."""
    for path in sorted(folder.iterdir()):
        if not _SET_NAME.fullmatch(path.name) or path.name == f"{_PREFIX}{key}":
            continue
        with suppress(BlockingIOError):
            try:
                found = path.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    with _locked(path / _LOCK):
                        shutil.rmtree(path)
            except BlockingIOError:
                raise
            except OSError as error:
                log.warning("blocks of another model stay", extra={"folder": str(path), "why": error.strerror})


def kept_bytes(folder: Path, key: str) -> int:
    """Bytes that the set `key` in `folder` already uses on disk."""
    with suppress(OSError):
        return sum(file.stat().st_blocks * 512 for file in (folder / f"{_PREFIX}{key}").iterdir())
    return 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock of a set, made where a removal was cut off. Raises BlockingIOError where another process has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)
