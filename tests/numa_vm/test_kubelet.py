"""Services under a kubelet that has two NUMA nodes: what it gives, what it refuses, and what the operator says of it.

Each NUMA node has four CPUs, of which one stays with the system, and a GPU, which exists by name only, is on node 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ballast_operator.control.reporting.numa_findings import parse_list
from support.cluster.kube import Object
from support.cluster.waiting import wait_for
from support.vm.cluster import GuestCluster
from support.vm.guest import Guest
from support.vm.node import CPUS_PER_NODE, NAME
from support.vm.table import Table

__all__ = ["CPUS_PER_NODE"]

BACKOFF_S, MOST_ATTEMPTS = 45, 3
"""10 s and 20 s lie between the first attempts, and 40 s before the next."""


@pytest.fixture(scope="module")
def cluster(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestCluster]:
    cluster = GuestCluster(guest, tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def single(cluster: GuestCluster) -> GuestCluster:
    """With a kubelet that keeps each pod on one NUMA node."""
    cluster.node.run_kubelet("single-numa-node")
    return cluster


@pytest.fixture
def restricted(cluster: GuestCluster) -> GuestCluster:
    """With a kubelet that spreads only what is larger than a whole NUMA node."""
    cluster.node.run_kubelet("restricted")
    return cluster


@pytest.fixture
def best_effort(cluster: GuestCluster) -> GuestCluster:
    """With a kubelet that prefers one NUMA node and takes what there is."""
    cluster.node.run_kubelet("best-effort")
    return cluster


def seen(cluster: GuestCluster, name: str) -> dict[str, object]:
    """What the kubelet gave and the kernel allows, after a look whether both agree with what the operator says."""
    given, (cpus, memory), placement = cluster.given(name), cluster.allowed(name), cluster.placement(name)
    assert (given.cpus, given.memory_nodes) == (cpus, parse_list(memory))
    assert (placement["cpus"], placement["memoryNodes"], placement["node"]) == (cpus, memory, NAME)
    return {"cpus": cpus, "memory_nodes": memory, "gpu_nodes": given.gpu_nodes}


def numa_option(pod: Object) -> str:
    """What the engine is told."""
    arguments = pod["spec"]["containers"][0]["args"]
    return str(arguments[arguments.index("--numa") + 1])


def test_one_numa_node_is_given_and_the_gpus_before_others(single: GuestCluster, table: Table) -> None:
    gpu = {"gpus": 1, "cpuFallback": True}
    with (
        single.service("plain", "SingleNode", "Require") as plain,
        single.service("beside-gpu", "SingleNode", "Require", **gpu) as beside_gpu,
    ):
        single.wait(plain, "Ready", "True", "Serving")
        single.wait(plain, "NUMAPinned", "True", "CPUsAndMemoryAligned")
        # There is no driver that could tell the process where its GPU is: said, not assumed, and required.
        single.wait(beside_gpu, "NUMAPinned", "False", "GPUNodeUnknown")
        single.wait(beside_gpu, "Ready", "False", "GPUNodeUnknown")
        without, with_gpu = seen(single, plain), seen(single, beside_gpu)
    assert without == {"cpus": "1-2", "memory_nodes": "0", "gpu_nodes": []}
    assert with_gpu == {"cpus": "5-6", "memory_nodes": "1", "gpu_nodes": [1]}
    table.add("kubelet single-numa-node, SingleNode and Require, 2 CPUs", **without, numa_pinned="True")
    reason = "GPUNodeUnknown"
    table.add("kubelet single-numa-node, SingleNode and Require, 2 CPUs and a GPU", **with_gpu, numa_pinned=reason)


def test_a_pod_that_fits_no_numa_node_is_refused_seldom(single: GuestCluster, table: Table) -> None:
    with single.service("large", "SingleNode", "Prefer", cpus=4) as large:
        message = single.wait(large, "Scheduled", "False", "TopologyAffinityError")
        for said in (f"node {NAME} refused", "4 CPUs", "ask for less", "numa.policy AllNodes"):
            assert said in message
        time.sleep(BACKOFF_S)
        attempts = [int(pod["metadata"]["annotations"]["serving.ballast.dev/attempt"]) for pod in single.pods(large)]
        assert max(attempts) < MOST_ATTEMPTS

        single.apply(large, "AllNodes", "Require", cpus=4)
        assert "that takes best-effort" in single.wait(large, "Scheduled", "False", "TopologyAffinityError")
        single.apply(large, "SingleNode", "Require", cpus=3)
        single.wait(large, "Scheduled", "True", "PodsScheduled")
        wait_for("CPUs", lambda: single.given(large).cpus == "1-3")
    table.add("kubelet single-numa-node, SingleNode, 4 CPUs", refused=True, attempts_in_45_s=max(attempts) + 1)


def test_restricted_spreads_what_is_larger_than_a_node(restricted: GuestCluster, table: Table) -> None:
    with restricted.service("spread", "AllNodes", "Require", cpus=CPUS_PER_NODE) as spread:
        restricted.wait(spread, "Scheduled", "False", "TopologyAffinityError")
        restricted.apply(spread, "AllNodes", "Require", cpus=CPUS_PER_NODE + 1)
        restricted.wait(spread, "Scheduled", "True", "PodsScheduled")
        wait_for("CPUs", lambda: restricted.given(spread).cpus == "1-3,5-6")
    table.add("kubelet restricted, AllNodes, 4 CPUs", refused=True)
    table.add("kubelet restricted, AllNodes, 5 CPUs", cpus="1-3,5-6")


def test_all_nodes_have_cpus_and_memory_of_both(best_effort: GuestCluster, table: Table) -> None:
    with best_effort.service("both", "AllNodes", "Require", cpus=4, memory="2Gi") as name:
        best_effort.wait(name, "Ready", "True", "Serving")
        best_effort.wait(name, "NUMAPinned", "True", "CPUsAndMemoryAligned")
        both = seen(best_effort, name)
    assert (both["cpus"], both["memory_nodes"]) == ("1-3,5", "0-1")
    table.add("kubelet best-effort, AllNodes and Require, 4 CPUs and 2 GiB", **both, numa_pinned="True")


def test_what_fits_no_numa_node_starts_and_says_so(best_effort: GuestCluster, table: Table) -> None:
    with best_effort.service("wide", "SingleNode", "Prefer", cpus=4) as name:
        best_effort.wait(name, "Ready", "True", "Serving")
        assert "NUMA nodes 0, 1" in best_effort.wait(name, "NUMAPinned", "False", "CPUsSpanNodes")
        wide, pod = seen(best_effort, name), best_effort.running_pod(name)

        best_effort.apply(name, "SingleNode", "Require", cpus=4)
        best_effort.wait(name, "Ready", "False", "CPUsSpanNodes")
        assert best_effort.running_pod(name)["metadata"]["uid"] == pod["metadata"]["uid"], "that restarts nothing"

        best_effort.apply(name, "AllNodes", "Prefer", cpus=4)
        assert "from 0 alone" in best_effort.wait(name, "NUMAPinned", "False", "MemoryNotPinned")
        divided, next_pod = seen(best_effort, name), best_effort.running_pod(name)
    assert (numa_option(pod), numa_option(next_pod)) == ("single", "auto")
    assert wide["cpus"] == divided["cpus"] == "1-3,5"
    table.add("kubelet best-effort, SingleNode and Prefer, 4 CPUs", **wide, numa_pinned="CPUsSpanNodes")
    table.add("kubelet best-effort, AllNodes and Prefer, 4 CPUs", **divided, numa_pinned="MemoryNotPinned")
