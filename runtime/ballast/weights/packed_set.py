"""A set of packed weights on a file system: a folder with a file for each matrix, a lock, and a manifest.

The manifest comes last, under its name in one step, so a set without one was never finished. Files are made anew,
never written over: a process that has mapped one keeps what it has mapped. What others could have put there is refused:
a set and its files belong to this user, and nobody else may write into them.
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
    """Why packed weights cannot be used or kept, with the name of the file or folder."""


class KeptMatrix(BaseModel):
    """One file of a set. Its place in the manifest is its name; `what` says which panels they are, `checksum` is that
    of kernels.PanelFile."""

    what: str
    num_bytes: int
    checksum: int


class Manifest(BaseModel):
    """What a finished set holds."""

    files: list[KeptMatrix]


def file_name(index: int) -> str:
    """Of the file for the manifest's entry `index`."""
    return f"{index:05d}.panels"


class PackedSet:
    """An open set. Used by one thread at a time. It counts as in use while it has its lock."""

    def __init__(self, folder: Path, key: str) -> None:
        """Opens the set `key` (see `packed_key`) in `folder`, and makes it where there is none. Raises PackedError and
        OSError."""
        self.path = folder / f"{_PREFIX}{key}"
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        self._fd = _open_own_folder(self.path)
        try:
            if os.fstat(self._fd).st_mode & _OTHERS_MAY_WRITE:
                # As a volume is when its pod's node starts again. What it holds may be anybody's.
                self.forget()
                os.fchmod(self._fd, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._lock = os.open(_LOCK, flags, mode=0o600, dir_fd=self._fd)
        except OSError as error:
            os.close(self._fd)
            raise PackedError(reason(error, self.path)) from error

    def lock(self, *, shared: bool) -> bool:
        """Take the lock, for reading or for writing, if nobody has it who forbids that, else have none.
        `close` gives it back."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # of two that read and want to write, one must get it
            fcntl.flock(self._lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Whoever removes a set does it under the lock.
        return os.fstat(self._lock).st_nlink > 0

    def manifest(self) -> Manifest | None:
        """What the set holds; None if it was not finished. Raises PackedError where that is damaged, and OSError."""
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
        """Make the set one that was never finished, so that the next start packs anew."""
        self.discard(MANIFEST)

    def new_file(self, name: str, length: int) -> int:
        """A descriptor of a new file of `length` bytes, which take no room yet. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(name, flags, mode=0o600, dir_fd=self._fd)
        try:
            os.ftruncate(file, length)
        except BaseException:
            os.close(file)
            raise
        return file

    def open_file(self, name: str, length: int, *, mapped: bool) -> int:
        """A descriptor of a file that must be `length` bytes long; without `mapped` it bypasses the page cache where it
        can. Raises PackedError and OSError."""
        if not mapped:
            with suppress(OSError):
                return self._checked(name, length, os.O_RDONLY | os.O_DIRECT)
        file = self._checked(name, length, os.O_RDWR if mapped else os.O_RDONLY)
        # A hole would be given memory as it is read, for which there may be no room.
        if mapped and os.fstat(file).st_blocks * _STAT_UNIT < length:
            os.close(file)
            raise PackedError(f"{self.path / name}: has holes")
        return file

    def write_file(self, name: str, memory: NDArray[np.uint8]) -> None:
        """A new file of whole pages, written past the page cache where that can be. Raises OSError."""
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
        """Remove a file, whose memory or disk is given back once nobody has it open or mapped."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def clear(self) -> None:
        """Remove all that the set holds but its lock. Raises OSError."""
        for name in sorted(self._names(), key=lambda name: name != MANIFEST):
            if name != _LOCK:
                os.unlink(name, dir_fd=self._fd)

    def remove(self) -> None:
        """Remove the set, whose lock for writing this process has. Raises OSError."""
        self.clear()
        os.unlink(_LOCK, dir_fd=self._fd)
        self.path.rmdir()

    def num_bytes(self) -> int:
        """What its files take. Raises OSError."""
        files = (os.stat(name, dir_fd=self._fd, follow_symlinks=False) for name in self._names())
        return sum(file.st_blocks * _STAT_UNIT for file in files)

    def close(self) -> None:
        """Give back the lock. Panels that are mapped stay."""
        for file in (self._lock, self._fd):
            with suppress(OSError):
                os.close(file)
        self._lock = self._fd = -1

    def _names(self) -> list[str]:
        return os.listdir(self._fd)  # noqa: PTH208  a Path may lead elsewhere by now

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
    """Remove the sets in `folder`, but for `key`, that no process uses. Returns why some of them stay. Raises
    OSError."""
    problems: list[str] = []
    for other in _others(folder, key):
        try:
            other.remove()
        except OSError as error:
            problems.append(reason(error, other.path))
    return problems


def reason(error: OSError | PackedError, where: Path) -> str:
    """What to say of an error at `where`, a set or the folder of all. The system names a file of a set without its
    folder, and a descriptor not at all."""
    if isinstance(error, PackedError):
        return str(error)
    name = error.filename if isinstance(error.filename, str) else ""
    return f"{name if '/' in name else where / name}: {error.strerror}"


def unused_bytes(folder: Path) -> int:
    """What the sets in `folder` take that no process uses: the next start uses or removes them."""
    try:
        return sum(found.num_bytes() for found in _others(folder, ""))
    except OSError:
        return 0


def keys_in_use(folder: Path) -> frozenset[str]:
    """The keys of the finished sets in `folder` that processes use: another one that wants such a set shares it."""
    found: set[str] = set()
    with suppress(OSError):
        for key, other in _sets(folder):
            with suppress(PackedError):
                if not other.lock(shared=False) and other.lock(shared=True) and other.manifest() is not None:
                    found.add(key)
    return frozenset(found)


def _others(folder: Path, key: str) -> Iterator[PackedSet]:
    """The sets, but for `key`, that no process uses, each locked while the caller has it."""
    for other, found in _sets(folder):
        if other != key and found.lock(shared=False):
            yield found


def _sets(folder: Path) -> Iterator[tuple[str, PackedSet]]:
    """The sets and their keys, each open while the caller has it."""
    for entry in sorted(folder.iterdir()):
        if not _SET_NAME.fullmatch(entry.name):
            continue
        key = entry.name.removeprefix(_PREFIX)
        try:
            found = PackedSet(folder, key)
        except (OSError, PackedError):  # somebody else's, or gone by now
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
        raise PackedError(f"{path}: mode {stat.S_IMODE(found.st_mode):o}; nobody else may write there")


def _write(file: int, data: memoryview, begin: int) -> None:
    while data.nbytes:
        count = os.pwrite(file, data, begin)
        begin, data = begin + count, data[count:]


def _write_text(file: int, data: bytes) -> None:
    """The same of an empty file, also where only mapped memory can be written."""
    try:
        _write(file, memoryview(data), 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        page = os.fstatvfs(file).f_bsize
        os.truncate(file, -(-len(data) // page) * page)
        with mmap.mmap(file, 0) as memory:
            memory[: len(data)] = data
