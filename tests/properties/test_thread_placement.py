"""On any machine, each thread is placed once, on free cores first, and evenly across nodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ballast._core import numa


@st.composite
def topologies(draw: st.DrawFn) -> numa.Topology:
    nodes, next_cpu = [], 0
    for index in range(draw(st.integers(1, 5))):
        cores = []
        for threads in draw(st.lists(st.integers(1, 4), max_size=12)):
            cores.append(list(range(next_cpu, next_cpu + threads)))
            next_cpu += threads
        cpus = [cpu for core in cores for cpu in core]
        nodes.append(numa.Node(index * 2, cpus, cores, memory_allowed=draw(st.booleans())))
    return numa.Topology(nodes)


@given(topologies(), st.integers(1, 80))
def test_every_thread_is_placed_and_no_cpu_has_two_threads(topology: numa.Topology, num_threads: int) -> None:
    placement = numa.place_threads(topology, num_threads)
    cpus = [cpu for node in placement.nodes for cpu in node.cpus if cpu != numa.ANY_CPU]
    assert placement.num_threads == num_threads
    assert len(set(cpus)) == len(cpus) == min(num_threads, topology.num_cpus)
    assert placement.num_unpinned == num_threads - len(cpus)
    assert all(node.cpus for node in placement.nodes)


@given(topologies(), st.integers(1, 80))
def test_a_thread_runs_on_its_own_node_or_on_one_without_memory(topology: numa.Topology, num_threads: int) -> None:
    with_memory = {node.index for node in topology.nodes if node.memory_allowed}
    placed = numa.place_threads(topology, num_threads).nodes
    for node in placed:
        elsewhere = {topology.node_of(cpu) for cpu in node.cpus if cpu != numa.ANY_CPU} - {node.node}
        assert not elsewhere & with_memory
        assert not elsewhere or node.node in with_memory
    lanes = {node.node for node in placed}
    assert lanes <= with_memory or not lanes & with_memory


@given(topologies(), st.integers(1, 80))
def test_no_sibling_is_used_while_a_core_is_free(topology: numa.Topology, num_threads: int) -> None:
    used = {cpu for node in numa.place_threads(topology, num_threads).nodes for cpu in node.cpus}
    cores = [core for node in topology.nodes for core in node.cores]
    num_used_cores = sum(1 for core in cores if used.intersection(core))
    assert num_used_cores == min(num_threads, len(cores))


@given(topologies(), st.integers(1, 80))
def test_nodes_get_threads_in_proportion_to_their_cores(topology: numa.Topology, num_threads: int) -> None:
    if num_threads > topology.num_cores:
        return
    cpus = [cpu for node in numa.place_threads(topology, num_threads).nodes for cpu in node.cpus]
    placed = Counter(topology.node_of(cpu) for cpu in cpus)
    for node in topology.nodes:
        fair = num_threads * len(node.cores) / topology.num_cores
        assert abs(placed[node.index] - fair) < 1
