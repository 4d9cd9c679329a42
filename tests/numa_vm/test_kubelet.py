"""Services under a kubelet that has two NUMA nodes: what it gives, what it refuses, and what the operator says of it.

Each NUMA node has four CPUs, of which one stays with the system, and a GPU, which exists by name only, is on node 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

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


@pytest.fixture(scope="module")
def single(cluster: GuestCluster) -> Iterator[GuestCluster]:
    """With a kubelet that keeps each pod on one NUMA node."""
    cluster.node.start_kubelet("single-numa-node")
    yield cluster
    cluster.node.stop_kubelet()


@pytest.fixture(scope="module")
def best_effort(cluster: GuestCluster) -> Iterator[GuestCluster]:
    """With a kubelet that prefers one NUMA node and takes what there is."""
    cluster.node.start_kubelet("best-effort")
    yield cluster
    cluster.node.stop_kubelet()


def seen(cluster: GuestCluster, name: str) -> dict[str, object]:
    """What the kubelet gave and the kernel allows, after a look whether both agree with what the operator says."""
    given, (cpus, memory), placement = cluster.given(name), cluster.allowed(name), cluster.placement(name)
    assert (given.cpus, ",".join(map(str, given.memory_nodes))) == (cpus, memory)
    assert (placement["cpus"], placement["memoryNodes"], placement["node"]) == (cpus, memory, NAME)
    return {"cpus": cpus, "memory_nodes": memory, "gpu_nodes": given.gpu_nodes}


def test_one_numa_node_is_given_and_the_gpus_before_others(single: GuestCluster, table: Table) -> None:
    single.apply("plain", "SingleNode", "Require")
    single.apply("beside-gpu", "SingleNode", "Require", gpus=1, cpuFallback=True)
    single.wait("plain", "Ready", "True", "Serving")
    single.wait("plain", "NUMAPinned", "True", "CPUsAndMemoryAligned")
    # There is no driver that could tell the process where its GPU is: said, not assumed, and required.
    single.wait("beside-gpu", "NUMAPinned", "False", "GPUNodeUnknown")
    single.wait("beside-gpu", "Ready", "False", "GPUNodeUnknown")
    plain, beside_gpu = seen(single, "plain"), seen(single, "beside-gpu")
    assert plain == {"cpus": "1-2", "memory_nodes": "0", "gpu_nodes": []}
    assert beside_gpu == {"cpus": "5-6", "memory_nodes": "1", "gpu_nodes": [1]}
    for name in ("plain", "beside-gpu"):
        single.remove(name)
    table.add("kubelet single-numa-node, SingleNode and Require, 2 CPUs", **plain, numa_pinned=True)
    table.add("kubelet single-numa-node, SingleNode and Require, 2 CPUs and a GPU", **beside_gpu, numa_pinned=False)


def test_a_pod_that_fits_no_numa_node_is_refused_seldom(single: GuestCluster, table: Table) -> None:
    single.apply("large", "SingleNode", "Prefer", cpus=4)
    message = single.wait("large", "Scheduled", "False", "TopologyAffinityError")
    for said in (f"node {NAME} refused", "4 CPUs", "ask for less", "numa.policy AllNodes"):
        assert said in message
    time.sleep(BACKOFF_S)
    attempts = [int(pod["metadata"]["annotations"]["serving.ballast.dev/attempt"]) for pod in single.pods("large")]
    assert max(attempts) < MOST_ATTEMPTS

    single.apply("large", "AllNodes", "Require", cpus=4)
    assert "best-effort" in single.wait("large", "Scheduled", "False", "TopologyAffinityError")
    single.apply("large", "SingleNode", "Require", cpus=3)
    single.wait("large", "Scheduled", "True", "PodsScheduled")
    assert single.given("large").cpus == "1-3"
    single.remove("large")
    table.add("kubelet single-numa-node, SingleNode, 4 CPUs", refused=True, attempts_in_45_s=max(attempts) + 1)


def test_all_nodes_have_cpus_and_memory_of_both(best_effort: GuestCluster, table: Table) -> None:
    best_effort.apply("both", "AllNodes", "Require", cpus=4, memory="2Gi")
    best_effort.wait("both", "Ready", "True", "Serving")
    best_effort.wait("both", "NUMAPinned", "True", "CPUsAndMemoryAligned")
    both = seen(best_effort, "both")
    assert (both["cpus"], both["memory_nodes"]) == ("1-3,5", "0,1")
    best_effort.remove("both")
    table.add("kubelet best-effort, AllNodes and Require, 4 CPUs, 2 GiB", **both, numa_pinned=True)


def test_what_fits_no_numa_node_starts_and_says_so(best_effort: GuestCluster, table: Table) -> None:
    best_effort.apply("wide", "SingleNode", "Prefer", cpus=4)
    best_effort.wait("wide", "Ready", "True", "Serving")
    message = best_effort.wait("wide", "NUMAPinned", "False", "CPUsSpanNodes")
    assert "NUMA nodes 0, 1" in message
    wide, uid = seen(best_effort, "wide"), best_effort.running_pod("wide")["metadata"]["uid"]
    best_effort.apply("wide", "SingleNode", "Require", cpus=4)
    best_effort.wait("wide", "Ready", "False", "CPUsSpanNodes")
    assert best_effort.running_pod("wide")["metadata"]["uid"] == uid, "what is required of it restarts nothing"
    best_effort.remove("wide")
    table.add("kubelet best-effort, SingleNode and Prefer, 4 CPUs", **wide, numa_pinned=False)
