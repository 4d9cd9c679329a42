"""A set of packed weights on a file system: a folder with a file for each matrix, a lock, and a manifest.

The manifest is written last and atomically, so a set without one is unfinished. Files are created, never overwritten: a
process keeps the content that it has mapped. A set and its files must belong to this user, and only this user may write
to them, so that other users cannot replace weights.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

_PREFIX = "ballast-packed-"
_SET_NAME = re.compile(_PREFIX + "[0-9a-f]{32}")
_LOCK, MANIFEST = "lock", "manifest.json"
_MAX_MANIFEST_BYTES = 8 << 20
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_STAT_UNIT = 512
_WRITTEN_AT_ONCE = 8 << 20


class PackedError(Exception):
    """Packed weights cannot be used or kept; the message contains the file or folder."""


class KeptMatrix(BaseModel):
    """One file of a set. Its index in the manifest determines its name; `what` describes its panels, `checksum` is that
    of kernels.PanelFile."""

    what: str
    num_bytes: int
    checksum: int


class Manifest(BaseModel):
    """The content of a finished set."""

    files: list[KeptMatrix]


def file_name(index: int) -> str:
    """Name of the file for the manifest's entry `index`."""
    return f"{index:05d}.panels"


class PackedSet:
    """An open set. Used by one thread at a time. It counts as in use while it has its lock."""

    def __init__(self, folder: Path, key: str) -> None:
        """Open the set `key` (see `packed_key`) in `folder`, or create it. Raises PackedError and
        OSError."""
        self.path = folder / f"{_PREFIX}{key}"
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        self._fd = _open_own_folder(self.path)
        try:
            if os.fstat(self._fd).st_mode & _OTHERS_MAY_WRITE:
                # A volume is like this after its node restarts. Other users may have written its content.
                self.forget()
                os.fchmod(self._fd, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._lock = os.open(_LOCK, flags, mode=0o600, dir_fd=self._fd)
        except OSError as error:
            os.close(self._fd)
            raise PackedError(reason(error, self.path)) from error

    def lock(self, *, shared: bool) -> bool:
        """Try to take the lock, for reading or for writing. On failure, no lock is held.
        `close` releases it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # if two readers want to write, one must get the lock
            fcntl.flock(self._lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # A set is only removed under the lock.
        return os.fstat(self._lock).st_nlink > 0

    def manifest(self) -> Manifest | None:
        """The set's manifest; None if it is unfinished. Raises PackedError if it is damaged, and OSError."""
        try:
            with self._open_own(MANIFEST, os.O_RDONLY) as file:
                data = os.read(file, _MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            return None
        try:
            return Manifest.model_validate_json(data.rstrip(b"\0"))
        except ValidationError as error:
            raise PackedError(f"{self.path / MANIFEST}: damaged: {error.errors()[0]['msg']}") from error

    def write_manifest(self, manifest: Manifest) -> None:
        """Finish the set. Raises OSError."""
        data = manifest.model_dump_json().encode()
        made = f"{MANIFEST}.new"
        file = self.new_file(made, 0)
        try:
            _write_text(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(made, MANIFEST, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)

    def forget(self) -> None:
        """Mark the set as unfinished, so that the next start packs again."""
        self.discard(MANIFEST)

    def new_file(self, name: str, length: int) -> int:
        """A descriptor of a new sparse file of `length` bytes. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(name, flags, mode=0o600, dir_fd=self._fd)
        try:
            os.ftruncate(file, length)
        except BaseException:
            os.close(file)
            raise
        return file

    def open_file(self, name: str, length: int, *, mapped: bool) -> int:
        """A descriptor of a file that must be `length` bytes long; without `mapped` it bypasses the page cache if
        possible. Raises PackedError and OSError."""
        if not mapped:
            with suppress(OSError):
                return self._checked(name, length, os.O_RDONLY | os.O_DIRECT)
        file = self._checked(name, length, os.O_RDWR if mapped else os.O_RDONLY)
        # Reading a hole would allocate memory that may not be available.
        if mapped and os.fstat(file).st_blocks * _STAT_UNIT < length:
            os.close(file)
            raise PackedError(f"{self.path / name}: has holes")
        return file

    def write_file(self, name: str, memory: NDArray[np.uint8]) -> None:
        """Write a new file of whole pages, bypassing the page cache if possible. Raises OSError."""
        file = self.new_file(name, memory.nbytes)
        try:
            with suppress(OSError):
                fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)
            for begin in range(0, memory.nbytes, _WRITTEN_AT_ONCE):
                _write(file, memory.data[begin : begin + _WRITTEN_AT_ONCE], begin)
            os.fsync(file)
        finally:
            os.close(file)

    def discard(self, name: str) -> None:
        """Remove a file. Its memory or disk space is freed when no process has it open or mapped."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def clear(self) -> None:
        """Remove the content of the set except its lock. Raises OSError."""
        for name in sorted(self._names(), key=lambda name: name != MANIFEST):
            if name != _LOCK:
                os.unlink(name, dir_fd=self._fd)

    def remove(self) -> None:
        """Remove the set. This process must hold its lock for writing. Raises OSError."""
        self.clear()
        os.unlink(_LOCK, dir_fd=self._fd)
        self.path.rmdir()

    def num_bytes(self) -> int:
        """Size of its files on disk. Raises OSError."""
        files = (os.stat(name, dir_fd=self._fd, follow_symlinks=False) for name in self._names())
        return sum(file.st_blocks * _STAT_UNIT for file in files)

    def close(self) -> None:
        """Release the lock. Mapped panels stay valid."""
        for file in (self._lock, self._fd):
            with suppress(OSError):
                os.close(file)
        self._lock = self._fd = -1

    def _names(self) -> list[str]:
        return os.listdir(self._fd)  # noqa: PTH208  a Path may now lead elsewhere

    def _checked(self, name: str, length: int, flags: int) -> int:
        with self._open_own(name, flags) as file:
            found = os.fstat(file).st_size
            if found != length:
                raise PackedError(f"{self.path / name}: {found} bytes; expected {length}")
            return os.dup(file)

    @contextmanager
    def _open_own(self, name: str, flags: int) -> Iterator[int]:
        path = self.path / name
        try:
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PackedError(f"{path}: a symbolic link; expected a file") from error
            raise
        try:
            _check_own(os.fstat(file), path, is_folder=False)
            yield file
        finally:
            os.close(file)


def remove_unused(folder: Path, key: str) -> list[str]:
    """Remove the sets in `folder`, except `key`, that no process uses. Returns the reasons for those that stay. Raises
    OSError."""
    problems: list[str] = []
    for other in _others(folder, key):
        try:
            other.remove()
        except OSError as error:
            problems.append(reason(error, other.path))
    return problems


def reason(error: OSError | PackedError, where: Path) -> str:
    """The message for an error at `where`, a set or the folder of all sets. The system reports a file of a set without
    its folder, and a descriptor without a name."""
    if isinstance(error, PackedError):
        return str(error)
    name = error.filename if isinstance(error.filename, str) else ""
    return f"{name if '/' in name else where / name}: {error.strerror}"


def unused_bytes(folder: Path) -> int:
    """Size of the sets in `folder` that no process uses: the next start uses or removes them."""
    try:
        return sum(found.num_bytes() for found in _others(folder, ""))
    except OSError:
        return 0


def keys_in_use(folder: Path) -> frozenset[str]:
    """The keys of the finished sets in `folder` that processes use: another process that needs such a set shares it."""
    found: set[str] = set()
    with suppress(OSError):
        for key, other in _sets(folder):
            with suppress(PackedError):
                if not other.lock(shared=False) and other.lock(shared=True) and other.manifest() is not None:
                    found.add(key)
    return frozenset(found)


def _others(folder: Path, key: str) -> Iterator[PackedSet]:
    """The sets, except `key`, that no process uses; each is locked while the caller handles it."""
    for other, found in _sets(folder):
        if other != key and found.lock(shared=False):
            yield found


def _sets(folder: Path) -> Iterator[tuple[str, PackedSet]]:
    """The sets and their keys, each open while the caller handles it."""
    for entry in sorted(folder.iterdir()):
        if not _SET_NAME.fullmatch(entry.name):
            continue
        key = entry.name.removeprefix(_PREFIX)
        try:
            found = PackedSet(folder, key)
        except (OSError, PackedError):  # another user's, or removed meanwhile
            continue
        try:
            yield key, found
        finally:
            found.close()


def _open_own_folder(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise PackedError(f"{path}: a link or a file; expected a folder") from error
        raise
    try:
        _check_own(os.fstat(file), path, is_folder=True)
    except BaseException:
        os.close(file)
        raise
    return file


def _check_own(found: os.stat_result, path: Path, *, is_folder: bool) -> None:
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(found.st_mode):
        raise PackedError(f"{path}: expected a {'folder' if is_folder else 'file'}")
    if found.st_uid != os.geteuid():
        raise PackedError(f"{path}: belongs to user {found.st_uid}; expected {os.geteuid()}")
    if not is_folder and found.st_mode & _OTHERS_MAY_WRITE:
        raise PackedError(f"{path}: mode {stat.S_IMODE(found.st_mode):o}; only the owner may have write permission")


def _write(file: int, data: memoryview, begin: int) -> None:
    while data.nbytes:
        count = os.pwrite(file, data, begin)
        begin, data = begin + count, data[count:]


def _write_text(file: int, data: bytes) -> None:
    """The same for an empty file, also if the file system only supports mapped writes."""
    try:
        _write(file, memoryview(data), 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        page = os.fstatvfs(file).f_bsize
        os.truncate(file, -(-len(data) // page) * page)
        with mmap.mmap(file, 0) as memory:
            memory[: len(data)] = data
