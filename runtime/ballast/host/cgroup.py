"""The limits of memory and CPU time that Linux control groups (version 2 and 1) set for this process.

A group's limit also applies to all groups below it, so all ancestors of the process's group are read. Inside a
container, the kernel often reports the host's path, while the mount shows the container's group as its root."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60
"""Version 1 shows a number near 2⁶³ if there is no limit."""

ReadText = Callable[[Path], str]
"""Returns a file's text; empty if the file cannot be read."""


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """The CPU time that a group's threads may use: that of `cpus` CPUs, possibly a fraction. When it is used up, the
    kernel stops all of these threads for the rest of the period, usually 100 ms."""

    cpus: float
    limited_by: str
    """The group's directory."""

    @property
    def num_threads(self) -> int:
        """The number of threads that can always run: whole CPUs, at least one."""
        return max(1, math.floor(self.cpus))


def memory_limits(read_text: ReadText, proc: Path, mount: Path) -> Iterator[tuple[Path, int, int]]:
    """(directory, bytes left, total bytes) of every group with a limit."""
    unified, memory = _groups(read_text, proc, mount, "memory")
    names = [(unified, "memory.max", "memory.current")]
    names.append((memory, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    for groups, limit, usage in names:
        for group in groups:
            most = read_text(group / limit)
            left = available_bytes(most, *(read_text(group / name) for name in (usage, "memory.stat")))
            if left is not None:
                yield group, left, int(most)


def cpu_quota(read_text: ReadText, proc: Path, mount: Path) -> CpuQuota | None:
    """The tightest quota of CPU time; None without one."""
    unified, cpu = _groups(read_text, proc, mount, "cpu")
    found = [(quota_cpus(read_text(group / "cpu.max")), group) for group in unified]
    for group in cpu:
        quota, period = (read_text(group / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        found.append((quota_cpus(f"{quota} {period}"), group))
    quotas = [CpuQuota(cpus, str(group)) for cpus, group in found if cpus is not None]
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def _groups(read_text: ReadText, proc: Path, mount: Path, controller: str) -> tuple[list[Path], list[Path]]:
    """This process's group and all groups above it: of version 2, and of version 1's `controller`."""
    unified, own = parse_cgroups(read_text(proc / "self/cgroup"), controller)
    return _ancestors(mount, unified), _ancestors(mount / controller, own)


def _ancestors(mount: Path, path: str | None) -> list[Path]:
    if path is None:
        return []
    group = mount / path.strip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]


def parse_cgroups(text: str, controller: str) -> tuple[str | None, str | None]:
    """This process's paths in /proc/self/cgroup: the unified hierarchy's, and that of version 1's `controller`."""
    unified = own = None
    # Lines are "hierarchy:controllers:path"; a sandbox may show something else.
    for controllers, path in re.findall(r"^\d+:([^:]*):(/.*)$", text, re.MULTILINE):
        if not controllers:
            unified = path
        elif controller in controllers.split(","):
            own = path
    return unified, own


def available_bytes(limit: str, usage: str, stat: str) -> int | None:
    """Bytes that a group may still allocate, where page cache counts as free; None without a limit.

    Reads version 2 (memory.max, memory.current, memory.stat) and version 1 (limit_in_bytes, usage_in_bytes, whose
    stat counts the groups below it under `total_` names).
    """
    if not limit.strip().isdecimal() or int(limit) >= _UNLIMITED_BYTES:
        return None
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE)}
    cache = sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, int(limit) - int(usage.strip() or 0) + cache)


def quota_cpus(text: str) -> float | None:
    """Number of CPUs whose time a group may use, from "quota period" in microseconds, as in cpu.max. None if the quota
    is "max" or, in version 1, -1."""
    found = re.fullmatch(r"(\d+)\s+(\d+)\s*", text)
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None
