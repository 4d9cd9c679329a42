"""Type and free space of a folder's file system."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"

_IN_MEMORY = frozenset({"tmpfs", "hugetlbfs"})
_UNLIMITED_BYTES = 1 << 62
_MOUNT = re.compile(r"^\d+ \d+ (?P<device>\d+:\d+) .*? - (?P<kind>\S+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system. It allocates space in multiples of `unit_bytes`."""

    kind: str
    """The kernel's name of the type, such as tmpfs or ext4; UNKNOWN if it does not report one."""
    unit_bytes: int
    free_bytes: int

    @property
    def is_in_memory(self) -> bool:
        """Whether its files are in memory, so that they can be mapped and used without a copy."""
        return self.kind in _IN_MEMORY


def read_file_system(folder: Path) -> FileSystem:
    """The file system of a folder. Raises OSError."""
    status, room = folder.stat(), os.statvfs(folder)
    kind = kind_of_device(_mounts(), status.st_dev)
    # A tmpfs without a limit reports 0 blocks.
    free = room.f_bavail * room.f_frsize if room.f_blocks or kind not in _IN_MEMORY else _UNLIMITED_BYTES
    return FileSystem(kind, max(room.f_bsize if kind == "hugetlbfs" else 0, os.sysconf("SC_PAGE_SIZE")), free)


def kind_of_device(mountinfo: str, device: int) -> str:
    """The type of the file system with the number `device`, from the text of /proc/self/mountinfo. Pure."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((mount["kind"] for mount in _MOUNT.finditer(mountinfo) if mount["device"] == wanted), UNKNOWN)


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
