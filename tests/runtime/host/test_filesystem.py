"""The file system of a folder, from the kernel's mount table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ballast.host.filesystem import UNKNOWN, FileSystem, kind_of_device, read_file_system

MOUNTS = r"""
22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
31 27 0:26 / /dev/shm rw,nosuid master:1 shared:4 - tmpfs tmpfs rw
40 27 0:33 /a\040-\040b /mnt/huge\040pages rw - hugetlbfs none rw,pagesize=2M
"""


@pytest.mark.parametrize(
    ("major", "minor", "kind"), [(259, 2, "ext4"), (0, 26, "tmpfs"), (0, 33, "hugetlbfs"), (0, 2, UNKNOWN)]
)
def test_the_kind_is_that_of_the_mount_with_the_device(major: int, minor: int, kind: str) -> None:
    assert kind_of_device(MOUNTS, os.makedev(major, minor)) == kind


def test_memory_file_systems_are_recognised() -> None:
    assert [kind for kind in ("tmpfs", "hugetlbfs", "ext4", UNKNOWN) if FileSystem(kind, 1, 1).is_in_memory] == [
        "tmpfs",
        "hugetlbfs",
    ]


def test_a_missing_folder_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file_system(tmp_path / "none")


def test_a_folders_free_space_is_that_of_its_file_system(tmp_path: Path) -> None:
    found = read_file_system(tmp_path)
    assert found.free_bytes > 0
    assert found.unit_bytes % os.sysconf("SC_PAGE_SIZE") == 0
