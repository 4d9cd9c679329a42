"""Machine properties read from /proc and /sys trees of different hosts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ballast.host.cgroup import CpuQuota, available_bytes, parse_cgroups, quota_cpus
from ballast.host.machine import (
    HugePages,
    Memory,
    NumaNode,
    parse_choice,
    parse_cpuinfo,
    read_machine,
)

GIB = 1 << 30

TWO_SOCKETS = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon Gold\nflags\t\t: fpu avx2 fma avx512f amx_tile amx_int8\n\n"
    "processor\t: 1\nmodel name\t: Xeon Gold\n",
    "proc/meminfo": "MemTotal:       8388608 kB\nMemFree:         100 kB\nMemAvailable:    4194304 kB\n",
    "proc/self/status": "Name:\tpython\nMems_allowed:\t3\nMems_allowed_list:\t0-1\n",
    "proc/self/cgroup": "0::/\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 40\n",
    "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:  4194304 kB\nNode 0 MemFree:  1048576 kB\n",
    "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:  4194304 kB\nNode 1 MemFree:  2097152 kB\n",
    **{
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}\n"
        for cpu in range(8)
    },
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "500\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
}
"""Two nodes of two cores with two threads each."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path, TWO_SOCKETS)


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_two_nodes_with_sibling_threads(root: Path) -> None:
    machine = read_machine(root, cpus=range(8))
    assert machine.num_physical_cores == 4
    assert machine.nodes == (
        NumaNode(0, frozenset({0, 1, 4, 5}), 4 * GIB, 1 * GIB),
        NumaNode(1, frozenset({2, 3, 6, 7}), 4 * GIB, 2 * GIB),
    )
    assert machine.memory_nodes == {0, 1}
    assert machine.memory == Memory(8 * GIB, 4 * GIB, None)
    assert machine.cpu_model == "Xeon Gold"
    assert machine.cpu_flags == ("avx2", "fma", "avx512f", "amx_tile", "amx_int8")
    assert machine.huge_pages == (HugePages(2 << 20, 512, 500),)
    assert machine.transparent_huge_pages == "madvise"
    assert machine.gpus == ("NVIDIA H200",)


@pytest.mark.parametrize(("cpus", "cores"), [({0, 4}, 1), ({0, 1}, 2), ({0, 1, 2, 3}, 4), ({3, 7, 2}, 2)])
def test_only_cores_of_allowed_cpus_count(root: Path, cpus: set[int], cores: int) -> None:
    assert read_machine(root, cpus).num_physical_cores == cores


def test_a_cpu_whose_siblings_are_unknown_is_a_core(tmp_path: Path) -> None:
    assert read_machine(tmp_path, cpus={0, 3, 5}).num_physical_cores == 3


def test_a_machine_that_reports_nothing_is_described_as_unknown(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, cpus={0})
    assert machine.memory == Memory(0, 0, None)
    assert machine.nodes == machine.gpus == machine.cpu_flags == machine.huge_pages == ()
    assert machine.cpu_model == "unknown"
    assert machine.transparent_huge_pages is None


def test_a_version_2_limit_counts_the_groups_page_cache_as_free(root: Path) -> None:
    plant(
        root,
        {
            "sys/fs/cgroup/memory.max": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\nshmem 7\n",
        },
    )
    memory = read_machine(root, {0}).memory
    assert memory.available_bytes == 3 * GIB - 2 * GIB + GIB // 2 + GIB // 4
    assert memory.limited_by == str(root / "sys/fs/cgroup")


def test_the_tightest_group_above_the_process_is_the_limit(root: Path) -> None:
    plant(
        root,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/pod/memory.current": "0\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
            "sys/fs/cgroup/pod/container/memory.current": "0\n",
        },
    )
    memory = read_machine(root, {0}).memory
    assert (memory.available_bytes, memory.limited_by) == (GIB, str(root / "sys/fs/cgroup/pod"))


def test_a_version_1_limit_is_found_under_the_containers_own_root(root: Path) -> None:
    plant(
        root,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\nactive_file 1\n"
            "total_inactive_file 1000\ntotal_active_file 24\n",
        },
    )
    memory = read_machine(root, {0}).memory
    assert memory.available_bytes == GIB + 1024
    assert memory.limited_by == str(root / "sys/fs/cgroup/memory")


def test_a_limit_above_the_machines_memory_has_no_effect(root: Path) -> None:
    plant(root, {"sys/fs/cgroup/memory.max": f"{100 * GIB}\n", "sys/fs/cgroup/memory.current": "0\n"})
    assert read_machine(root, {0}).memory == Memory(8 * GIB, 4 * GIB, None)


def test_no_limit_in_either_version() -> None:
    assert available_bytes("max\n", "5\n", "") is None
    assert available_bytes("9223372036854771712\n", "5\n", "") is None
    assert available_bytes("", "", "") is None


def test_a_cgroup_over_its_limit_has_no_memory_left() -> None:
    assert available_bytes("100", "200", "") == 0


V2, V1 = "sys/fs/cgroup/", "sys/fs/cgroup/cpu/"


@pytest.mark.parametrize(
    ("files", "quota", "threads"),
    [
        ({f"{V2}cpu.max": "max 100000\n"}, None, 4),
        ({f"{V2}cpu.max": "250000 100000\n"}, (2.5, V2), 2),
        ({f"{V2}cpu.max": "30000 100000\n"}, (0.3, V2), 1),
        ({f"{V2}cpu.max": "9900000 100000\n"}, (99, V2), 4),
        (  # the container has no quota, but its pod has one
            {
                "proc/self/cgroup": "0::/pod/container\n",
                f"{V2}pod/cpu.max": "300000 100000\n",
                f"{V2}pod/container/cpu.max": "max 100000\n",
            },
            (3, f"{V2}pod"),
            3,
        ),
        (  # the host's path, which does not exist in the container's mount
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
                f"{V1}cpu.cfs_quota_us": "100000\n",
                f"{V1}cpu.cfs_period_us": "50000\n",
            },
            (2, V1),
            2,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/a\n",
                f"{V1}a/cpu.cfs_quota_us": "-1\n",
                f"{V1}a/cpu.cfs_period_us": "100000\n",
            },
            None,
            4,
        ),
    ],
)
def test_a_quota_of_cpu_time_bounds_the_threads(
    root: Path, files: dict[str, str], quota: tuple[float, str] | None, threads: int
) -> None:
    machine = read_machine(plant(root, files), cpus=range(8))
    assert machine.cpu_quota == (None if quota is None else CpuQuota(quota[0], str(root / quota[1])))
    assert machine.default_threads == threads
    assert machine.num_busy_cpus == (8 if quota is None else min(8, max(1, int(quota[0]))))


def test_a_quota_is_reported_where_it_matters(root: Path) -> None:
    machine = read_machine(plant(root, {f"{V2}cpu.max": "250000 100000\n"}), cpus=range(8))
    group = root / "sys/fs/cgroup"
    assert machine.quota_note(2) == (
        f"cgroup {group} allows the time of 2.5 CPUs; the default is 2 threads on 4 usable cores, which can always run"
    )
    assert machine.quota_note(4) == (
        f"cgroup {group} allows the time of 2.5 CPUs: 4 threads can use it up, and then all of them stop until the "
        "next period"
    )
    assert machine.quota_note(1) is None
    assert replace(machine, cpu_quota=None).quota_note(4) is None
    starved = replace(machine, cpu_quota=CpuQuota(0.3, "/pod")).quota_note(1)
    assert starved is not None
    assert "of 0.3 CPUs: 1 thread can use it up" in starved, "even one thread exceeds the quota"


def test_small_formats() -> None:
    assert parse_choice("[always] madvise never") == "always"
    assert parse_cpuinfo("Features\t: fp asimd\n", ["asimd", "avx2"]) == ("unknown", ("asimd",))
    assert parse_cgroups("4:memory:/a:b\n1:name=systemd:/x\n", "memory") == (None, "/a:b")
    assert parse_cgroups("\nunknown\n0::/c:d\n", "cpu") == ("/c:d", None), "lines in other formats are skipped"
    assert parse_cgroups("5:cpu,cpuacct:/a\n4:cpuset:/b\n0::/c\n", "cpu") == ("/c", "/a")
    assert [quota_cpus(text) for text in ("250000 100000\n", "max 100000\n", "-1 100000", " ", "")] == [
        2.5,
        *[None] * 4,
    ]


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert machine.cpus == os.sched_getaffinity(0)
    assert 1 <= machine.num_physical_cores <= len(machine.cpus)
    assert 0 < machine.memory.available_bytes <= machine.memory.total_bytes


@pytest.mark.parametrize(
    ("memory", "available"),
    [
        (Memory(100, 40, None, 100), 70),
        (Memory(100, 40, "/group", 60), 60),
        (Memory(100, 80, None), 100),
    ],
)
def test_reused_memory_adds_to_what_is_available_up_to_the_limit(memory: Memory, available: int) -> None:
    assert memory.with_reused(30).available_bytes == available
