"""NUMA: the thread plan, the report of the running process, and `/debug/numa` of a real server."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ballast._core.numa import UNKNOWN_NODE as ANY
from ballast._core.numa import Node, Topology
from ballast.host.gpu import GpuIdentity, identify_gpu
from ballast.host.numa import (
    ComputeThread,
    GpuReport,
    NumaReport,
    WeightMemory,
    common_node,
    format_cpus,
    judge_pinning,
    local_share,
    plan_threads,
    read_gpus,
    read_report,
)
from ballast.host.numa_mode import NumaMode
from ballast.server.telemetry.numa_report import NumaProbe
from devkit.servers.process import FAKE, ServerProcess

ONE_NODE = Topology([Node(0, [0, 1, 2, 3], [[0, 2], [1, 3]])])
TOO_MANY = (os.cpu_count() or 1) + 1
TWO_NODES = Topology([Node(0, [0, 1], [[0], [1]]), Node(1, [2, 3], [[2], [3]]), Node(2, [], [])])


def placed(
    topology: Topology, num_threads: int, mode: NumaMode = "auto", gpu_node: int | None = None
) -> list[tuple[int, list[int]]] | str:
    plan = plan_threads(topology, num_threads, mode, gpu_node)
    return plan.reason if plan.placement is None else [(node.node, node.cpus) for node in plan.placement.nodes]


def test_threads_that_fill_the_cores_or_several_nodes_are_pinned() -> None:
    assert placed(ONE_NODE, 2) == [(0, [0, 1])]
    assert placed(ONE_NODE, 4) == [(0, [0, 1, 2, 3])]
    assert placed(TWO_NODES, 2) == [(0, [0]), (1, [2])]


def test_single_keeps_threads_on_the_node_with_the_most_cores_if_they_fit() -> None:
    assert placed(TWO_NODES, 1, "single") == [(0, [0])]
    assert placed(TWO_NODES, 2, "single") == [(0, [0, 1])]
    assert placed(TWO_NODES, 3, "single") == placed(TWO_NODES, 3, "auto"), "one node has too few cores"
    assert placed(ONE_NODE, 1, "single") == placed(ONE_NODE, 1, "auto"), "there is only one node"
    larger_second = Topology([Node(0, [0], [[0]]), Node(1, [1, 2, 3], [[1], [2], [3]])])
    assert placed(larger_second, 3, "single") == [(1, [1, 2, 3])]
    no_memory = Topology([Node(0, [0, 1], [[0], [1]], False), Node(1, [2], [[2]])])
    assert placed(no_memory, 1, "single") == [(1, [2])]
    assert placed(no_memory, 2, "single") == placed(no_memory, 2, "auto"), "memory of the larger node is forbidden"


def test_single_takes_the_gpus_node_before_a_larger_one_if_they_fit() -> None:
    assert placed(TWO_NODES, 2, "single", gpu_node=1) == [(1, [2, 3])]
    assert placed(TWO_NODES, 2, "auto", gpu_node=1) == placed(TWO_NODES, 2, "auto")
    larger_second = Topology([Node(0, [0], [[0]]), Node(1, [1, 2], [[1], [2]])])
    assert placed(larger_second, 1, "single", gpu_node=0) == [(0, [0])]
    assert placed(larger_second, 2, "single", gpu_node=0) == [(1, [1, 2])], "the GPU's node has too few cores"
    no_memory = Topology([Node(0, [0], [[0]]), Node(1, [1], [[1]], False)])
    assert placed(no_memory, 1, "single", gpu_node=1) == [(0, [0])], "memory of the GPU's node is forbidden"


def test_unpinned_threads_report_the_reason() -> None:
    assert placed(ONE_NODE, 2, "off") == "numa is off"
    assert placed(ONE_NODE, 1) == "there are 1 threads for 2 cores of one node"
    assert placed(ONE_NODE, 5) == "there are 5 threads for 4 CPUs"


def test_pinning_is_judged_by_the_threads_actual_affinity() -> None:
    def threads(*cpus: tuple[int, ...]) -> list[ComputeThread]:
        return [ComputeThread(f"ballast-cpu-{number}", each) for number, each in enumerate(cpus)]

    assert judge_pinning(threads((0,), (1,))) == (True, "each of 2 threads is pinned to its own CPU")
    assert judge_pinning([]) == (False, "there are no compute threads yet")
    assert judge_pinning(threads((0,), (0,))) == (False, "2 threads share 1 CPUs")
    assert judge_pinning(threads((0,), (0, 1, 2, 5))) == (
        False,
        "1 of 2 threads are not pinned to one CPU; ballast-cpu-1 may use 0-2,5",
    )


@pytest.mark.parametrize(
    ("bytes_by_reader", "threads_per_node", "share"),
    [
        ({ANY: {0: 100}}, {0: 4}, 1.0),
        ({ANY: {0: 100}}, {1: 4}, 0.0),
        ({ANY: {0: 75, 1: 25}}, {0: 4}, 0.75),
        ({ANY: {0: 50, 1: 50}}, {0: 2, 1: 2}, 0.5),
        ({ANY: {0: 100}}, {0: 1, None: 1}, 0.5),
        ({ANY: {0: 100}}, {ANY: 4}, None),
        ({}, {0: 4}, None),
        ({ANY: {}}, {0: 4}, None),
        ({ANY: {0: 100}}, {}, None),
        ({0: {0: 50}, 1: {1: 50}}, {0: 2, 1: 2}, 1.0),
        ({0: {0: 30, 1: 20}, 1: {1: 50}}, {0: 2, 1: 2}, 0.8),
        ({0: {0: 40}, 1: {1: 40}, ANY: {0: 10, 1: 10}}, {0: 2, 1: 2}, 0.9),
        ({0: {0: 50}, 1: {1: 50}}, {0: 2, None: 2}, 0.5),
    ],
)
def test_the_local_fraction_is_the_probability_of_a_local_read(
    bytes_by_reader: dict[int, dict[int, int]], threads_per_node: dict[int | None, int], share: float | None
) -> None:
    assert local_share(bytes_by_reader, threads_per_node) == share


def test_cpus_are_written_as_the_kernel_does() -> None:
    assert format_cpus([5, 0, 1, 2, 9, 10]) == "0-2,5,9-10"
    assert format_cpus([]) == ""


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


PINNED_POD = {
    "proc/self/status": "Name:\tballast\nCpus_allowed_list:\t2-3\nMems_allowed_list:\t1\n",
    "proc/self/task/7/status": "Name:\tballast\nCpus_allowed_list:\t2-3\n",
    "proc/self/task/11/status": "Name:\tballast-cpu-10\nCpus_allowed_list:\t3\n",
    "proc/self/task/9/status": "Name:\tballast-cpu-0\nCpus_allowed_list:\t2\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node1/cpulist": "2-3\n",
}
"""What a process sees that may use only node 1 of two."""


def test_no_memory_is_local_to_threads_whose_nodes_memory_is_forbidden(tmp_path: Path) -> None:
    """They read node 0's memory, which is remote to them."""
    remote = {**PINNED_POD, "proc/self/status": PINNED_POD["proc/self/status"].replace("list:\t1", "list:\t0")}
    touched = np.ones(1 << 22, np.uint8)
    memory = WeightMemory(experts={0: [(touched.ctypes.data, touched.nbytes)]})
    report = read_report(memory, root=plant(tmp_path, remote))
    assert [(node.node, node.memory_allowed, node.num_threads) for node in report.nodes] == [
        (0, True, 0),
        (1, False, 2),
    ]
    assert report.share_local == 0


def test_a_pod_pinned_to_one_node_is_reported_as_such(tmp_path: Path) -> None:
    report = read_report(WeightMemory(), root=plant(tmp_path, PINNED_POD))
    assert (report.cpus, report.memory_nodes) == ((2, 3), (1,))
    assert [(thread.name, thread.cpus) for thread in report.threads] == [
        ("ballast-cpu-0", (2,)),
        ("ballast-cpu-10", (3,)),
    ]
    assert report.pinned
    assert [(node.node, node.num_usable_cores, node.memory_allowed, node.num_threads) for node in report.nodes] == [
        (0, 0, False, 0),
        (1, 2, True, 2),
    ]
    assert report.share_local is None


@pytest.mark.parametrize(
    ("siblings", "shared"), [({2: "2-3", 3: "2-3"}, ()), ({2: "0,2", 3: "1,3"}, (2, 3)), ({3: "1,3"}, (3,)), ({}, ())]
)
def test_cores_shared_with_other_processes_are_reported(
    tmp_path: Path, siblings: dict[int, str], shared: tuple[int, ...]
) -> None:
    files = {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{t}\n" for n, t in siblings.items()}
    assert read_report(WeightMemory(), root=plant(tmp_path, PINNED_POD | files)).shared_core_cpus == shared


def test_threads_that_could_not_be_pinned_report_the_reason(tmp_path: Path) -> None:
    loose = PINNED_POD | {"proc/self/task/9/status": "Name:\tballast-cpu-0\nCpus_allowed_list:\t0-3\n"}
    report = read_report(WeightMemory(), "numa is off", plant(tmp_path, loose))
    assert not report.pinned
    assert report.pinned_reason.endswith("ballast-cpu-0 may use 0-3: numa is off")
    assert [node.num_threads for node in report.nodes] == [0, 1]


def test_memory_is_reported_on_its_node_where_sys_is_hidden(tmp_path: Path) -> None:
    hidden = {name: text for name, text in PINNED_POD.items() if name.startswith("proc/")}
    array = np.ones(32 << 20, np.uint8)
    weights = WeightMemory(experts={1: [(array.ctypes.data, array.nbytes)]})
    root = plant(tmp_path, hidden)
    on_nodes = 0
    for _ in range(20):  # a page that the system is moving is on no node
        array.fill(1)
        report = read_report(weights, root=root)
        unknown = report.nodes[0]
        assert (unknown.node, unknown.cpus, unknown.num_threads) == (-1, (2, 3), 2)
        assert report.share_local is None
        on_nodes = sum(node.expert_bytes or 0 for node in report.nodes if node.node >= 0)
        if on_nodes == pytest.approx(array.nbytes, rel=0.05):
            break
    assert on_nodes == pytest.approx(array.nbytes, rel=0.05)


def identify(name: str) -> GpuIdentity | None:
    """As the driver of a machine with two GPUs."""
    known = {"cuda:0": "0000:c1:00.0", "cuda:1": "0000:01:00.0"}
    return GpuIdentity("NVIDIA H200", known[name]) if name in known else None


def gpus(root: Path, names: list[str], **numa_nodes: str) -> tuple[GpuReport, ...]:
    files = {f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node": text for bus, text in numa_nodes.items()}
    return read_gpus(names, plant(root, files), identify)


def test_each_gpu_that_is_used_has_its_own_node(tmp_path: Path) -> None:
    both = gpus(tmp_path, ["cuda:1", "cuda:0"], **{"c1": "1\n", "01": "0\n"})
    assert both == (GpuReport("cuda:1", "NVIDIA H200", 0), GpuReport("cuda:0", "NVIDIA H200", 1))
    assert common_node(both) is None
    assert common_node(both[:1]) == 0, "a GPU that the model does not use does not matter"
    assert common_node(gpus(tmp_path, ["cuda:1", "cuda:0"], c1="0\n")) == 0


@pytest.mark.parametrize("numa_node", ["-1\n", ""])
def test_a_gpu_with_an_unknown_numa_node_has_none(tmp_path: Path, numa_node: str) -> None:
    found = gpus(tmp_path, ["cuda:0", "cuda:1"], **{"c1": numa_node, "01": "0\n"})
    assert [gpu.node for gpu in found] == [None, 0]
    assert common_node(found) is None


def test_a_gpu_that_the_driver_does_not_offer_is_reported_by_name(tmp_path: Path) -> None:
    assert gpus(tmp_path, ["cuda:2"]) == (GpuReport("cuda:2", None, None),)
    assert identify_gpu("cuda:999") is None
    assert identify_gpu("cpu") is None
    assert common_node(()) is None


@pytest.mark.gpu
def test_the_driver_names_a_gpu_by_product_and_pci_address() -> None:
    found = identify_gpu("cuda:0")
    assert found is not None
    assert found.product.startswith("NVIDIA")
    assert Path("/sys/bus/pci/devices", found.pci_address).is_dir()


# --- the probe ---------------------------------------------------------------------------------------------------


class CountingReader:
    """A slow fake reader that records its calls and how many ran concurrently."""

    def __init__(self, root: Path) -> None:
        self._report = read_report(WeightMemory(), root=plant(root, PINNED_POD))
        self.subjects: list[WeightMemory] = []
        self.threads: set[int] = set()
        self._busy = threading.Lock()

    def __call__(self, memory: WeightMemory, why_not_pinned: str) -> NumaReport:
        assert self._busy.acquire(blocking=False), "two concurrent reads"
        try:
            self.subjects.append(memory)
            self.threads.add(threading.get_ident())
            time.sleep(0.02)
            return self._report
        finally:
            self._busy.release()


async def test_concurrent_requests_share_one_read_off_the_event_loop(tmp_path: Path) -> None:
    read = CountingReader(tmp_path)
    probe = NumaProbe(read)
    await asyncio.gather(*(probe.report(60.0) for _ in range(10)))
    assert len(read.subjects) == 1
    assert threading.get_ident() not in read.threads


async def test_new_weights_make_an_old_report_stale(tmp_path: Path) -> None:
    read = CountingReader(tmp_path)
    probe = NumaProbe(read)
    early = asyncio.create_task(probe.report(60.0))
    await asyncio.sleep(0)
    loaded = WeightMemory(experts={ANY: ((4096, 4096),)})
    probe.watch(loaded, "")
    await early
    await probe.report(60.0)
    await probe.report(60.0)
    assert [memory.experts for memory in read.subjects][-1] == loaded.experts
    assert len(read.subjects) <= 2


async def test_a_report_that_is_too_old_is_read_again(tmp_path: Path) -> None:
    read = CountingReader(tmp_path)
    probe = NumaProbe(read)
    for _ in range(3):
        await probe.report(0.0)
    assert len(read.subjects) == 3


def test_memory_pinned_for_a_gpu_is_reported_as_soon_as_it_is_known() -> None:
    probe = NumaProbe()

    def shown() -> float:
        return next(family.samples[0].value for family in probe.collect() if family.name == "ballast_host_pinned_bytes")

    assert shown() == 0
    probe.watch(WeightMemory(pinned_bytes=8192), "")
    assert shown() == 8192


# --- the real server ---------------------------------------------------------------------------------------------


def debug_numa(server: ServerProcess) -> dict[str, object]:
    status, _, body = server.get("/debug/numa")
    assert status == 200
    report: dict[str, object] = json.loads(body)
    return report


def tasks(pid: int) -> dict[str, str]:
    """Name → CPUs of the compute threads, read from another process."""
    found = {}
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        if fields["Name"].strip().startswith("ballast-cpu-"):
            found[fields["Name"].strip()] = fields["Cpus_allowed_list"].strip()
    return found


def test_a_server_reports_its_threads_and_weights_as_they_are() -> None:
    with ServerProcess() as server:
        report = debug_numa(server)
        metrics = server.metrics()
        assert {thread["name"]: thread["cpus"] for thread in report["threads"]} == tasks(server.process.pid)
    assert report["cpus"] == format_cpus(os.sched_getaffinity(0))
    cores = sum(node["usable_cores"] for node in report["nodes"])
    assert report["pinned"], report["pinned_reason"]
    assert len(report["threads"]) == cores
    assert len({thread["cpus"] for thread in report["threads"]}) == cores
    experts = {node["node"]: node["expert_bytes"] for node in report["nodes"]}
    weights = {node["node"]: node["weight_bytes"] for node in report["nodes"]}
    assert sum(weights.values()) >= sum(experts.values()) > 0
    assert 0 < report["share_local"] <= 1
    assert (report["gpu_node"], report["gpus"]) == (None, [])
    for node, num_bytes in experts.items():
        assert metrics[f'ballast_numa_expert_bytes{{node="{node}"}}'] > 0 or num_bytes == 0
    assert metrics["ballast_numa_mempolicy_available"] == float(report["mempolicy_available"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--numa", "off", "--cpu_threads", "2"), "numa is off"),
        (("--cpu_threads", str(TOO_MANY)), f"there are {TOO_MANY} threads for"),
    ],
)
def test_a_server_without_pinning_reports_it(options: tuple[str, ...], reason: str) -> None:
    with ServerProcess(*options) as server:
        report = debug_numa(server)
        assert not report["pinned"]
        assert reason in report["pinned_reason"]
        assert set(tasks(server.process.pid).values()) == {report["cpus"]}
        assert server.event("threads")["pinned"] is False


def test_the_report_is_there_before_the_model_is() -> None:
    with ServerProcess("--load_s", "3", module=FAKE, until_ready=False) as server:
        report = debug_numa(server)
    assert (report["pinned"], report["pinned_reason"], report["threads"]) == (
        False,
        "there are no compute threads yet",
        [],
    )
    assert report["share_local"] is None
