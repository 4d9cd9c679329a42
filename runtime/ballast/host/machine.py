"""The host's resources for this process: CPUs, NUMA nodes, memory, huge pages, GPUs.

Parsing is pure; `read_machine` reads the system. Facts that the system does not report are absent, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ballast.host.cgroup import CpuQuota, cpu_quota, memory_limits

if TYPE_CHECKING:
    from ballast._core import numa


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One node with all of its CPUs, including CPUs that this process may not use."""

    index: int
    cpus: frozenset[int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the host. `available_bytes` can be allocated without swapping: free memory and reclaimable page cache.
    `limited_by` is the cgroup directory with the tightest limit; None if the machine itself is the limit."""

    total_bytes: int
    available_bytes: int
    limited_by: str | None
    most_bytes: int | None = None
    """The lowest limit of a cgroup, if it is below total_bytes."""

    def with_reused(self, num_bytes: int) -> Memory:
        """The memory for a process that takes over `num_bytes` of files in memory. These may count against this
        process's cgroup or against that of the process before it."""
        most = self.total_bytes if self.most_bytes is None else self.most_bytes
        return replace(self, available_bytes=max(self.available_bytes, min(self.available_bytes + num_bytes, most)))


@dataclass(frozen=True, slots=True)
class HugePages:
    """One pool of reserved huge pages."""

    page_bytes: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts on which plans and defaults depend."""

    topology: numa.Topology
    cpu_model: str
    cpu_flags: tuple[str, ...]
    """CPU features that the kernel enables, named as in /proc/cpuinfo; only those that some compute kernel of this
    build uses."""
    nodes: tuple[NumaNode, ...]
    memory: Memory
    cpu_quota: CpuQuota | None
    mempolicy_available: bool
    """Whether the kernel lets this process set memory policies."""
    huge_pages: tuple[HugePages, ...]
    transparent_huge_pages: str | None
    """always, madvise or never; None if the kernel does not support them."""
    gpus: tuple[str, ...]
    """Model names, as NVIDIA's driver lists them."""

    @property
    def cpus(self) -> frozenset[int]:
        """Logical CPUs that this process may use."""
        return frozenset(cpu for node in self.topology.nodes for core in node.cores for cpu in core)

    @property
    def num_physical_cores(self) -> int:
        """Physical cores among `cpus`."""
        return self.topology.num_cores

    @property
    def num_busy_cpus(self) -> int:
        """The number of `cpus` that the quota allows to be busy all the time."""
        return len(self.cpus) if self.cpu_quota is None else min(len(self.cpus), self.cpu_quota.num_threads)

    @property
    def default_threads(self) -> int:
        """Default number of compute threads: one per physical core, but at most the number that the quota allows to run
        all the time. With more, the kernel would stop all threads in the middle of a layer whenever the quota is used
        up."""
        return min(self.num_physical_cores, self.num_busy_cpus)

    def quota_note(self, num_threads: int) -> str | None:
        """The effect of the quota of CPU time on a pool of `num_threads`, for the log; None if there is none."""
        quota = self.cpu_quota
        if quota is None:
            return None
        allowed = f"cgroup {quota.limited_by} allows the time of {quota.cpus:g} CPUs"
        threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
        if num_threads > quota.cpus:
            return f"{allowed}: {threads} can use it up, and then all of them stop until the next period"
        if num_threads == self.default_threads < self.num_physical_cores:
            return (
                f"{allowed}; the default is {threads} on {self.num_physical_cores} usable cores, which can always run"
            )
        return None

    @property
    def memory_nodes(self) -> frozenset[int]:
        """NUMA nodes whose memory this process may use."""
        return frozenset(node.index for node in self.topology.nodes if node.memory_allowed)


def read_machine(root: Path = Path("/"), cpus: Iterable[int] | None = None) -> Machine:
    """This machine, or the one whose /proc and /sys are under `root`. `cpus`: the usable CPUs; None: as the kernel
    reports."""
    from ballast._core import kernels, numa  # imported here, because the doctor must work without the compiled module

    proc, sys = root / "proc", root / "sys"
    flags = dict.fromkeys(flag for fast in reversed(kernels.fast_isas()) for flag in fast.cpu_flags)
    cpu_model, cpu_flags = parse_cpuinfo(_text(proc / "cpuinfo"), flags)
    topology = numa.read_topology(str(root), None if cpus is None else list(cpus))
    return Machine(
        topology=topology,
        cpu_model=cpu_model,
        cpu_flags=cpu_flags,
        nodes=tuple(_nodes(sys / "devices/system/node", topology)),
        memory=read_memory(root),
        cpu_quota=cpu_quota(_text, proc, sys / "fs/cgroup"),
        mempolicy_available=numa.mempolicy_available(),
        huge_pages=tuple(_huge_pages(sys / "kernel/mm/hugepages")),
        transparent_huge_pages=parse_choice(_text(sys / "kernel/mm/transparent_hugepage/enabled")),
        gpus=tuple(_gpus(proc / "driver/nvidia/gpus")),
    )


def parse_cpuinfo(text: str, flags: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The model name and the available `flags`, from the first CPU in the file."""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    found = set(listed[1].split()) if listed else set()
    return (model[1].strip() if model else "unknown"), tuple(flag for flag in flags if flag in found)


def parse_meminfo(text: str) -> dict[str, int]:
    """Name → bytes, of /proc/meminfo or of a node's meminfo."""
    entries = re.findall(r"^(?:Node \d+ )?([\w()]+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in entries}


def parse_choice(text: str) -> str | None:
    """The selected word of a file like "always [madvise] never"."""
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen[1] if chosen else None


def _text(file: Path) -> str:
    """A file's text; empty if the file does not exist or cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _nodes(folder: Path, topology: numa.Topology) -> Iterator[NumaNode]:
    for node in topology.nodes:
        if node.index >= 0:
            memory = parse_meminfo(_text(folder / f"node{node.index}/meminfo"))
            yield NumaNode(
                index=node.index,
                cpus=frozenset(node.cpus),
                total_bytes=memory.get("MemTotal", 0),
                free_bytes=memory.get("MemFree", 0),
            )


def read_memory(root: Path = Path("/")) -> Memory:
    """The memory of this machine, or of the one whose /proc and /sys are under `root`."""
    proc, cgroup = root / "proc", root / "sys/fs/cgroup"
    meminfo = parse_meminfo(_text(proc / "meminfo"))
    available, limited_by = meminfo.get("MemAvailable", 0), None
    total = meminfo.get("MemTotal", 0)
    groups = list(memory_limits(_text, proc, cgroup))
    for folder, left, _ in groups:
        if left < available:
            available, limited_by = left, str(folder)
    lowest = min((limit for _, _, limit in groups), default=total)
    return Memory(total, available, limited_by, lowest if lowest < total else None)


def _huge_pages(folder: Path) -> Iterator[HugePages]:
    for pool in sorted(folder.glob("hugepages-*kB")):
        page_bytes = int(pool.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        total, free = (int(_text(pool / name).strip() or 0) for name in ("nr_hugepages", "free_hugepages"))
        yield HugePages(page_bytes, total, free)


def _gpus(folder: Path) -> Iterator[str]:
    for gpu in sorted(folder.glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", _text(gpu), re.MULTILINE)
        yield model[1].strip() if model else "unknown"
