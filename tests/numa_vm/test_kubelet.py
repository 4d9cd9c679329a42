"""Services with a kubelet on two NUMA nodes: what it allocates, what it rejects, and what the operator reports.

Each NUMA node has four CPUs, one of them reserved for the system. Node 1 has a simulated GPU;
in one test, node 0 has one too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ballast_operator.control.reporting.numa_findings import parse_list
from devkit.cluster.kube import Object
from devkit.cluster.waiting import wait_for
from devkit.vm.cluster import GuestCluster
from devkit.vm.guest import Guest
from devkit.vm.node import CPUS_PER_NODE, NAME
from devkit.vm.table import Table

__all__ = ["CPUS_PER_NODE"]

TWO_GPUS = (1, 0)
"""The NUMA nodes of two GPUs."""
BACKOFF_S, MOST_ATTEMPTS = 45, 3
"""The first two delays between attempts are 10 s and 20 s, the next one is 40 s."""


@pytest.fixture(scope="module")
def cluster(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestCluster]:
    cluster = GuestCluster(guest, tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def seen(cluster: GuestCluster, name: str) -> dict[str, object]:
    """The kubelet's allocation and the kernel's limits, after checking that the operator's report matches both."""
    given, (cpus, memory), placement = cluster.given(name), cluster.allowed(name), cluster.placement(name)
    assert (given.cpus, given.memory_nodes) == (cpus, parse_list(memory))
    assert (placement["cpus"], placement["memoryNodes"], placement["node"]) == (cpus, memory, NAME)
    return {"cpus": cpus, "memory_nodes": memory, "gpu_nodes": given.gpu_nodes}


def numa_option(pod: Object) -> str:
    """The value of the engine's --numa option."""
    arguments = pod["spec"]["containers"][0]["args"]
    return str(arguments[arguments.index("--numa") + 1])


def test_one_numa_node_is_allocated_and_preferably_the_gpus(cluster: GuestCluster, table: Table) -> None:
    cluster.node.run_kubelet("single-numa-node")
    assert f"node {NAME}: CPUs static, memory Static, topology single-numa-node" in cluster.doctor()
    with cluster.service("plain", "SingleNode", "Require") as name:
        cluster.wait(name, "Ready", "True", "Serving")
        cluster.wait(name, "NUMAPinned", "True", "CPUsAndMemoryAligned")
        without = seen(cluster, name)
    # Node 0 is free again: only the GPU makes the next pod use node 1.
    with cluster.service("with-gpu", "SingleNode", "Require", gpus=1, cpuFallback=True) as name:
        # Without a driver, the engine computes on the CPU, so that the GPU's node does not matter to it.
        cluster.wait(name, "Ready", "True", "Serving")
        cluster.wait(name, "NUMAPinned", "True", "CPUsAndMemoryAligned")
        with_gpu = seen(cluster, name)
    assert without == {"cpus": "1-2", "memory_nodes": "0", "gpu_nodes": []}
    assert with_gpu == {"cpus": "5-6", "memory_nodes": "1", "gpu_nodes": [1]}
    table.add("kubelet single-numa-node, SingleNode and Require, 2 CPUs", **without, numa_pinned="True")
    table.add("kubelet single-numa-node, SingleNode and Require, 2 CPUs and a GPU", **with_gpu, numa_pinned="True")


def test_a_pod_that_fits_no_numa_node_is_retried_rarely(cluster: GuestCluster, table: Table) -> None:
    cluster.node.run_kubelet("single-numa-node")
    with cluster.service("large", "SingleNode", "Prefer", cpus=4) as large:
        message = cluster.wait(large, "Scheduled", "False", "TopologyAffinityError")
        for text in (f"node {NAME} rejected", "4 CPUs", "request less", "numa.policy AllNodes"):
            assert text in message
        time.sleep(BACKOFF_S)
        attempts = [int(pod["metadata"]["annotations"]["serving.ballast.dev/attempt"]) for pod in cluster.pods(large)]
        assert max(attempts) < MOST_ATTEMPTS

        cluster.apply(large, "AllNodes", "Require", cpus=4)
        assert "set it to best-effort" in cluster.wait(large, "Scheduled", "False", "TopologyAffinityError")
        cluster.apply(large, "SingleNode", "Require", cpus=3)
        cluster.wait(large, "Scheduled", "True", "PodsScheduled")
        wait_for("CPUs", lambda: cluster.given(large).cpus == "1-3")
    table.add("kubelet single-numa-node, SingleNode, 4 CPUs", refused=True, attempts_in_45_s=max(attempts) + 1)


def test_restricted_spreads_only_pods_that_need_several_nodes(cluster: GuestCluster, table: Table) -> None:
    cluster.node.run_kubelet("restricted")
    with cluster.service("spread", "AllNodes", "Require", cpus=5) as spread:
        cluster.wait(spread, "Scheduled", "False", "TopologyAffinityError")  # only one node has the memory
        cluster.apply(spread, "AllNodes", "Require", cpus=5, memory="2Gi")
        cluster.wait(spread, "Scheduled", "True", "PodsScheduled")
        wait_for("CPUs", lambda: cluster.given(spread).cpus)
        given = cluster.given(spread)
    assert (given.cpus, given.memory_nodes) == ("1-3,5-6", {0, 1})
    table.add("kubelet restricted, AllNodes, 5 CPUs and 1 GiB", refused=True)
    table.add("kubelet restricted, AllNodes, 5 CPUs and 2 GiB", refused=False, cpus=given.cpus, memory_nodes="0-1")


def test_two_gpus_on_two_numa_nodes_need_a_policy_of_all_nodes(cluster: GuestCluster, table: Table) -> None:
    """The engine ends at its start, because there is no driver; until then the kubelet has allocated everything."""
    cluster.node.run_kubelet("restricted", TWO_GPUS)
    with cluster.service("two-gpus", "SingleNode", "Require", gpus=2) as name:
        assert "numa.policy AllNodes" in cluster.wait(name, "Scheduled", "False", "TopologyAffinityError")
        cluster.apply(name, "AllNodes", "Require", gpus=2, cpus=5, memory="2Gi")
        cluster.wait(name, "Scheduled", "True", "PodsScheduled")
        wait_for("CPUs", lambda: cluster.given(name).cpus)
        given = cluster.given(name)
    assert (given.cpus, given.memory_nodes, given.gpu_nodes) == ("1-3,5-6", {0, 1}, [0, 1])
    table.add("kubelet restricted, SingleNode and Require, 2 CPUs and 2 GPUs", refused=True)
    shown = {"cpus": given.cpus, "memory_nodes": "0-1", "gpu_nodes": given.gpu_nodes}
    table.add("kubelet restricted, AllNodes and Require, 5 CPUs and 2 GPUs", refused=False, **shown)


def test_a_pod_that_fits_no_numa_node_starts_and_reports_it(cluster: GuestCluster, table: Table) -> None:
    cluster.node.run_kubelet("best-effort")
    with cluster.service("wide", "SingleNode", "Prefer", cpus=4) as name:
        cluster.wait(name, "Ready", "True", "Serving")
        assert "NUMA nodes 0, 1" in cluster.wait(name, "NUMAPinned", "False", "CPUsSpanNodes")
        wide, pod = seen(cluster, name), cluster.running_pod(name)

        cluster.apply(name, "SingleNode", "Require", cpus=4)
        cluster.wait(name, "Ready", "False", "CPUsSpanNodes")
        assert cluster.running_pod(name)["metadata"]["uid"] == pod["metadata"]["uid"], "that restarts nothing"

        cluster.apply(name, "AllNodes", "Require", cpus=4)
        cluster.wait(name, "Ready", "True", "Serving")
        cluster.wait(name, "NUMAPinned", "True", "CPUsAndMemoryAligned")
        divided, next_pod = seen(cluster, name), cluster.running_pod(name)
    assert (numa_option(pod), numa_option(next_pod)) == ("single", "auto")
    assert wide == divided == {"cpus": "1-3,5", "memory_nodes": "0-1", "gpu_nodes": []}
    table.add("kubelet best-effort, SingleNode and Prefer, 4 CPUs", **wide, numa_pinned="CPUsSpanNodes")
    table.add("kubelet best-effort, AllNodes and Require, 4 CPUs", **divided, numa_pinned="True")


def test_memory_follows_no_cpus_without_a_topology_manager(cluster: GuestCluster, table: Table) -> None:
    cluster.node.run_kubelet("none")
    with cluster.service("apart", "AllNodes", "Prefer", cpus=4) as name:
        cluster.wait(name, "Ready", "True", "Serving")
        assert "only from 0" in cluster.wait(name, "NUMAPinned", "False", "MemoryNotPinned")
        apart = seen(cluster, name)
    assert (apart["cpus"], apart["memory_nodes"]) == ("1-3,5", "0")
    table.add("kubelet none, AllNodes and Prefer, 4 CPUs", **apart, numa_pinned="MemoryNotPinned")
