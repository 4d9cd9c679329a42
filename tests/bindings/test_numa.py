"""Topologies of different hosts and containers, thread placement on them, and memory counted per node."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ballast._core import kernels, numa
from ballast.host.numa import read_bytes_per_node

ANY = numa.ANY_CPU


def plant(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def node_files(cpulists: dict[int, str]) -> dict[str, str]:
    return {f"sys/devices/system/node/node{index}/cpulist": f"{cpus}\n" for index, cpus in cpulists.items()}


def sibling_files(*groups: list[int]) -> dict[str, str]:
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": ",".join(map(str, group)) + "\n"
        for group in groups
        for cpu in group
    }


def shape(topology: numa.Topology) -> list[tuple[int, list[list[int]], bool]]:
    return [(node.index, node.cores, node.memory_allowed) for node in topology.nodes]


TWO_SOCKETS = {
    **node_files({0: "0-1,4-5", 1: "2-3,6-7"}),
    **sibling_files([0, 4], [1, 5], [2, 6], [3, 7]),
    "sys/devices/system/node/has_cpu": "0-1\n",
    "sys/devices/system/cpu/online": "0-7\n",
    "proc/self/status": "Name:\tpython\nMems_allowed:\t3\nMems_allowed_list:\t0-1\n",
}
"""Two nodes of two cores with two threads each."""


def test_one_node(tmp_path: Path) -> None:
    topology = numa.read_topology(plant(tmp_path, node_files({0: "0-1"}) | sibling_files([0], [1])), [0, 1])
    assert shape(topology) == [(0, [[0], [1]], True)]
    assert (topology.num_cores, topology.num_cpus) == (2, 2)


def test_two_nodes_with_sibling_threads(tmp_path: Path) -> None:
    topology = numa.read_topology(plant(tmp_path, TWO_SOCKETS), list(range(8)))
    assert shape(topology) == [(0, [[0, 4], [1, 5]], True), (1, [[2, 6], [3, 7]], True)]
    assert (topology.num_cores, topology.num_cpus) == (4, 8)
    assert [topology.node_of(cpu) for cpu in (0, 5, 2, 7, 99)] == [0, 0, 1, 1, numa.UNKNOWN_NODE]


def test_four_nodes_with_holes_in_their_numbers_and_an_offline_cpu(tmp_path: Path) -> None:
    files = node_files({0: "0-1", 2: "2-3", 8: "4-5", 10: ""}) | {"sys/devices/system/cpu/online": "0-2,4-5\n"}
    topology = numa.read_topology(plant(tmp_path, files), [0, 1, 2, 3, 4, 5])
    # CPU 3 is offline although the caller passes it; node 10 has only memory.
    assert shape(topology) == [
        (0, [[0], [1]], True),
        (2, [[2]], True),
        (8, [[4], [5]], True),
        (10, [], True),
    ]


def test_a_cpuset_limits_cpus_and_memory_nodes(tmp_path: Path) -> None:
    files = TWO_SOCKETS | {"proc/self/status": "Mems_allowed_list:\t1\n"}
    topology = numa.read_topology(plant(tmp_path, files), [2, 6, 3])
    assert shape(topology) == [(0, [], False), (1, [[2, 6], [3]], True)]
    assert topology.nodes[0].cpus == [0, 1, 4, 5]


def test_a_hidden_sysfs_gives_one_unknown_node_of_single_cores(tmp_path: Path) -> None:
    topology = numa.read_topology(str(tmp_path), [3, 0, 3])
    assert shape(topology) == [(numa.UNKNOWN_NODE, [[0], [3]], True)]


def test_a_cpu_that_no_node_lists_is_kept_apart(tmp_path: Path) -> None:
    topology = numa.read_topology(plant(tmp_path, node_files({0: "0"})), [0, 1])
    assert shape(topology) == [(numa.UNKNOWN_NODE, [[1]], True), (0, [[0]], True)]


def test_the_process_keeps_its_cpus_when_one_of_its_threads_is_pinned() -> None:
    before = numa.read_topology().num_cpus
    cpus = os.sched_getaffinity(0)
    found: list[int] = []

    def pinned() -> None:
        os.sched_setaffinity(0, {min(cpus)})
        found.append(numa.read_topology().num_cpus)

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    assert found == [before] == [len(cpus)]


def place(topology: numa.Topology, num_threads: int) -> list[tuple[int, list[int]]]:
    return [(node.node, node.cpus) for node in numa.place_threads(topology, num_threads).nodes]


def test_threads_use_cores_before_siblings_and_surplus_threads_are_not_pinned(tmp_path: Path) -> None:
    topology = numa.read_topology(plant(tmp_path, TWO_SOCKETS), list(range(8)))
    assert place(topology, 1) == [(0, [0])]
    assert place(topology, 3) == [(0, [0, 1]), (1, [2])]
    assert place(topology, 4) == [(0, [0, 1]), (1, [2, 3])]
    assert place(topology, 6) == [(0, [0, 1, 4]), (1, [2, 3, 6])]
    assert place(topology, 10) == [(0, [0, 1, 4, 5, ANY]), (1, [2, 3, 6, 7, ANY])]
    assert numa.place_threads(topology, 10).num_unpinned == 2


def test_threads_of_nodes_without_memory_are_distributed_over_the_other_nodes() -> None:
    cpus = ([0, 1], [2, 3], [4, 5])
    nodes = [numa.Node(i, each, [[cpu] for cpu in each], memory_allowed=i != 0) for i, each in enumerate(cpus)]
    assert place(numa.Topology(nodes), 6) == [(1, [2, 3, 0]), (2, [4, 5, 1])]
    nowhere = [numa.Node(node.index, node.cpus, node.cores, memory_allowed=False) for node in nodes]
    assert place(numa.Topology(nowhere), 6) == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5])]


def test_a_machine_without_a_known_cpu_pins_nothing() -> None:
    assert place(numa.Topology([]), 2) == [(numa.UNKNOWN_NODE, [ANY, ANY])]


@pytest.mark.parametrize("num_threads", [0, -1])
def test_no_threads_cannot_be_placed(num_threads: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads is {num_threads}"):
        numa.place_threads(numa.Topology([]), num_threads)


def test_a_pool_refuses_a_placement_without_threads() -> None:
    with pytest.raises(ValueError, match="has no thread"):
        kernels.ThreadPool(numa.Placement([numa.NodeThreads(0, [0]), numa.NodeThreads(1, [])]))


def test_pinned_and_unpinned_pools_compute_the_same() -> None:
    import numpy as np

    cpus = sorted(os.sched_getaffinity(0))
    made_up = numa.Placement([numa.NodeThreads(0, [cpus[0]]), numa.NodeThreads(1, [cpus[-1], ANY])])
    pool = kernels.ThreadPool(made_up)
    assert (pool.num_threads, pool.num_nodes, pool.pin_refusal) == (3, 2, "")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((40, 64), dtype=np.float32)
    x = rng.standard_normal((5, 64), dtype=np.float32)
    matrix = kernels.Matrix(weights.view(np.uint8), 0, 40, 64)
    results = []
    for each in (pool, kernels.ThreadPool(1)):
        out = np.empty((5, 40), np.float32)
        kernels.linear(each, x, matrix, out)
        results.append(out)
    assert np.array_equal(*results)


# --- location of memory ------------------------------------------------------------------------------------------

MAPS = """\
10000-20000 rw-p 00000000 00:00 0
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
7f1000000000-7f1040000000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)
7f2000000000-7f2000004000 r--s 00000000 08:01 5 /models/N0=1 odd.gguf
"""
NUMA_MAPS = """\
00010000 default anon=16 dirty=16 N0=10 N1=6 kernelpagesize_kB=4
7f0000000000 prefer:1 anon=2048 dirty=2048 active=0 N1=2048 kernelpagesize_kB=4
7f1000000000 bind:0-1 file=/anon_hugepage\\040(deleted) huge anon=512 dirty=512 N0=256 N1=256 kernelpagesize_kB=2048
7f2000000000 default file=/models/N0=1\\040odd.gguf mapped=4 mapmax=2 N0=3 kernelpagesize_kB=4
"""
KIB = 1024


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], {}),
        ([(0x10000, 0x10000)], {0: 40 * KIB, 1: 24 * KIB}),
        ([(0x7F0000000000, 0x800000)], {1: 8192 * KIB}),
        ([(0x7F1000000000, 0x40000000)], {0: 512 << 20, 1: 512 << 20}),
        ([(0x7F2000000000, 0x4000)], {0: 12 * KIB}),
        ([(0x7F0000400000, 0x400000)], {1: 4096 * KIB}),
        ([(0x7F0000400000, 0x300000), (0x7F0000600000, 0x200000)], {1: 4096 * KIB}),
        ([(0x10000, 0x10000), (0x7F0000000000, 0x800000)], {0: 40 * KIB, 1: (24 + 8192) * KIB}),
        ([(0x20000, 0x1000)], {}),
    ],
    ids=["none", "two nodes", "one node", "huge pages", "file", "half", "overlap", "several", "not mapped"],
)
def test_bytes_are_counted_by_node_within_the_ranges(ranges: list[tuple[int, int]], expected: dict[int, int]) -> None:
    assert numa.bytes_per_node(NUMA_MAPS, MAPS, ranges) == expected


def test_a_mapping_without_a_known_end_is_ignored() -> None:
    assert numa.bytes_per_node(NUMA_MAPS, "", [(0, 1 << 47)]) == {}


def test_touched_memory_of_this_process_is_found() -> None:
    import numpy as np

    array = np.ones(64 << 20, np.uint8)
    [found] = read_bytes_per_node([(array.ctypes.data, array.nbytes)])
    assert found is not None
    assert sum(found.values()) == pytest.approx(array.nbytes, rel=0.05)
