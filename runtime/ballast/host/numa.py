"""NUMA: plans where threads run, and reports where the process's threads and weights actually are."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ballast._core import numa
from ballast.host.gpu import GpuIdentity, identify_gpu
from ballast.host.numa_mode import NumaMode

THREAD_NAME = "ballast-cpu-"
"""Prefix of the compute threads' names."""


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """How threads are pinned. `placement` None: not pinned. `reason` explains it, as the end of a sentence."""

    placement: numa.Placement | None
    reason: str


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """The places of a loaded model's weights: address ranges in host memory, and GPUs."""

    experts: Mapping[int, Sequence[numa.Range]] = field(default_factory=dict)
    """Node → ranges that the node's threads read. UNKNOWN_NODE: any thread may read them."""
    others: Sequence[numa.Range] = ()
    """The other weights; any thread may read them."""
    pinned_bytes: int = 0
    """Bytes of experts in memory that is pinned for a GPU."""
    gpus: Sequence[str] = ()
    """The GPUs that the model uses, such as "cuda:0", in the order of their layers."""


@dataclass(frozen=True, slots=True)
class ComputeThread:
    """One compute thread and its allowed CPUs."""

    name: str
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU that the model uses. None: unknown."""

    name: str
    """"cuda:N"."""
    product: str | None
    node: int | None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node. Byte counts are of resident memory; None if the kernel does not report them."""

    node: int
    cpus: tuple[int, ...]
    """All CPUs of the node."""
    num_usable_cores: int
    memory_allowed: bool
    num_threads: int
    """Number of compute threads that can run only on this node."""
    expert_bytes: int | None
    weight_bytes: int | None
    """All weights, experts included."""


@dataclass(frozen=True, slots=True)
class NumaReport:
    """The placement of this process, from /proc and /sys."""

    cpus: tuple[int, ...]
    shared_core_cpus: tuple[int, ...]
    """The subset of `cpus` whose core has another CPU that only other processes may use."""
    memory_nodes: tuple[int, ...]
    nodes: tuple[NodeReport, ...]
    gpus: tuple[GpuReport, ...]
    threads: tuple[ComputeThread, ...]
    pinned: bool
    pinned_reason: str
    mempolicy_available: bool
    share_local: float | None
    """Probability that a resident byte of the weights is on the node of the thread that reads it; None if unknown."""

    @property
    def gpu_node(self) -> int | None:
        """The node of all GPUs; None if there is none, a node is unknown, or they are on several nodes."""
        return common_node(self.gpus)


def plan_threads(topology: numa.Topology, num_threads: int, mode: NumaMode, gpu_node: int | None = None) -> ThreadPlan:
    """Decide whether and where to pin `num_threads` threads. Pure.

    Threads are pinned if they fill the cores or span several nodes. Fewer threads on one node are not pinned, because
    two programs that each use half of the cores would be pinned to the same half. With mode "single" all threads run on
    one node that has a core for each: `gpu_node`, the GPUs' node, otherwise the node with the most cores."""
    num_nodes = sum(1 for node in topology.nodes if node.cores)
    if mode == "off":
        return ThreadPlan(None, "numa is off")
    if num_threads > topology.num_cpus:
        return ThreadPlan(None, f"there are {num_threads} threads for {topology.num_cpus} CPUs")
    if num_nodes == 1 and num_threads < topology.num_cores:
        return ThreadPlan(None, f"there are {num_threads} threads for {topology.num_cores} cores of one node")
    if mode == "single" and num_nodes > 1 and (node := _with_cores(topology, num_threads, gpu_node)) is not None:
        alone = numa.place_threads(numa.Topology([node]), num_threads)
        return ThreadPlan(alone, f"{num_threads} threads have CPUs of node {node.index} alone")
    count = "one node" if num_nodes == 1 else f"{num_nodes} nodes"
    return ThreadPlan(numa.place_threads(topology, num_threads), f"{num_threads} threads have CPUs of {count}")


def threads_per_node(topology: numa.Topology, num_threads: int, mode: NumaMode) -> tuple[int, ...]:
    """The number of threads per node of the pool according to `plan_threads`. Experts' rows are divided in proportion.
    Pure."""
    placement = plan_threads(topology, num_threads, mode).placement
    return (num_threads,) if placement is None else tuple(len(node.cpus) for node in placement.nodes)


def local_share(
    bytes_by_reader: Mapping[int, Mapping[int, int]], threads_per_node: Mapping[int | None, int]
) -> float | None:
    """Probability that a byte is on the node of the thread that reads it; None if the nodes are unknown. Pure.

    `bytes_by_reader`: node whose threads read the bytes (UNKNOWN_NODE: any thread) → node where they are → bytes.
    `threads_per_node`: the key None counts threads that may run on several nodes; no byte is local to them.
    """
    num_bytes = sum(sum(by_node.values()) for by_node in bytes_by_reader.values())
    num_threads = sum(threads_per_node.values())
    if not num_bytes or not num_threads or numa.UNKNOWN_NODE in threads_per_node:
        return None
    share_bound = 1 - threads_per_node.get(None, 0) / num_threads
    local = 0.0
    for reader, by_node in bytes_by_reader.items():
        if reader == numa.UNKNOWN_NODE:
            local += sum(count * threads_per_node.get(node, 0) for node, count in by_node.items()) / num_threads
        else:
            local += by_node.get(reader, 0) * share_bound
    return local / num_bytes


def judge_pinning(threads: Sequence[ComputeThread]) -> tuple[bool, str]:
    """Whether every thread is pinned to its own CPU, and a sentence about it. Pure."""
    if not threads:
        return False, "there are no compute threads yet"
    loose = [thread for thread in threads if len(thread.cpus) != 1]
    if loose:
        allowed = format_cpus(loose[0].cpus)
        return (
            False,
            f"{len(loose)} of {len(threads)} threads are not pinned to one CPU; {loose[0].name} may use {allowed}",
        )
    if len({thread.cpus for thread in threads}) < len(threads):
        return False, f"{len(threads)} threads share {len({thread.cpus for thread in threads})} CPUs"
    return True, f"each of {len(threads)} threads is pinned to its own CPU"


def read_report(memory: WeightMemory, why_not_pinned: str = "", root: Path = Path("/")) -> NumaReport:
    """The current state. Slow for a large process, because the kernel walks all of its pages.

    `why_not_pinned`: why threads were not pinned at start; part of the reason if they are not pinned now.
    /proc and /sys are read below `root`, but memory is always that of this process.
    """
    status = (root / "proc/self/status").read_text()
    cpus = _listed(status, "Cpus_allowed_list")
    topology = numa.read_topology(str(root), cpus)
    threads = tuple(read_threads(root))
    node_of_thread = [_only_node(topology, thread.cpus) for thread in threads]
    per_range = read_bytes_per_node(*memory.experts.values(), memory.others)
    *of_experts, of_others = per_range or [{}] * (len(memory.experts) + 1)
    by_reader: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for reader, found in zip([*memory.experts, numa.UNKNOWN_NODE], [*of_experts, of_others], strict=True):
        by_reader[reader].update(found)
    expert_bytes = sum(map(Counter, of_experts), Counter())
    weight_bytes = expert_bytes + Counter(of_others)
    pinned, reason = judge_pinning(threads)
    memory_nodes = _listed(status, "Mems_allowed_list")
    # numa_maps contains the nodes of memory even if /sys is hidden.
    hidden = sorted({*weight_bytes} - {node.index for node in topology.nodes})
    return NumaReport(
        cpus=cpus,
        shared_core_cpus=read_shared_core_cpus(cpus, root),
        memory_nodes=memory_nodes,
        nodes=tuple(
            NodeReport(
                node=node.index,
                cpus=tuple(node.cpus),
                num_usable_cores=len(node.cores),
                memory_allowed=node.memory_allowed,
                num_threads=node_of_thread.count(node.index),
                expert_bytes=None if per_range is None else expert_bytes[node.index],
                weight_bytes=None if per_range is None else weight_bytes[node.index],
            )
            for node in [*topology.nodes, *(numa.Node(index, [], [], index in memory_nodes) for index in hidden)]
        ),
        gpus=read_gpus(memory.gpus, root),
        threads=threads,
        pinned=pinned,
        pinned_reason=reason if pinned or not (threads and why_not_pinned) else f"{reason}: {why_not_pinned}",
        mempolicy_available=numa.mempolicy_available(),
        share_local=local_share(by_reader, Counter(_near_memory(topology, node) for node in node_of_thread)),
    )


def read_bytes_per_node(*ranges: Sequence[numa.Range]) -> list[dict[int, int]] | None:
    """Node → resident bytes, for each set of ranges; None if the kernel does not report them. Takes seconds for
    hundreds of gigabytes."""
    try:
        numa_maps, maps = (Path("/proc/self", name).read_text(errors="replace") for name in ("numa_maps", "maps"))
    except OSError:
        return None
    return [numa.bytes_per_node(numa_maps, maps, each) for each in ranges]


def read_threads(root: Path = Path("/")) -> Iterable[ComputeThread]:
    """This process's compute threads, ordered by number."""
    found = []
    for status_file in (root / "proc/self/task").glob("*/status"):
        try:
            status = status_file.read_text()
        except OSError:
            continue  # the thread has ended
        name = re.search(r"^Name:\s*(\S+)", status, re.MULTILINE)
        if name and name[1].startswith(THREAD_NAME):
            found.append(ComputeThread(name[1], _listed(status, "Cpus_allowed_list")))
    return sorted(found, key=lambda thread: int(thread.name.removeprefix(THREAD_NAME)))


def read_gpus(
    names: Iterable[str], root: Path = Path("/"), identify: Callable[[str], GpuIdentity | None] = identify_gpu
) -> tuple[GpuReport, ...]:
    """Product and node of these GPUs, such as "cuda:0". `identify`: asks CUDA's driver."""
    found = []
    for name in names:
        known = identify(name)
        node = None if known is None else _device_node(root / "sys/bus/pci/devices" / known.pci_address)
        found.append(GpuReport(name, None if known is None else known.product, node))
    return tuple(found)


def common_node(gpus: Iterable[GpuReport]) -> int | None:
    """The node of all these GPUs; None if there is none, a node is unknown, or they are on several nodes."""
    nodes = {gpu.node for gpu in gpus}
    return nodes.pop() if len(nodes) == 1 else None


def _device_node(folder: Path) -> int | None:
    """The node of a PCI device; None if the system does not know it, as on many virtual machines."""
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return None if node == numa.UNKNOWN_NODE else node


def read_shared_core_cpus(cpus: Sequence[int], root: Path = Path("/")) -> tuple[int, ...]:
    """The subset of `cpus` with a sibling outside `cpus`. CPUs with unknown siblings are left out."""
    shared = []
    for cpu in cpus:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        if siblings.exists() and not set(numa.parse_cpu_list(siblings.read_text().strip())) <= set(cpus):
            shared.append(cpu)
    return tuple(shared)


def format_cpus(cpus: Iterable[int]) -> str:
    """CPUs in the format of the kernel's lists: "0-3,8,10-11"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _listed(status: str, key: str) -> tuple[int, ...]:
    found = re.search(rf"^{key}:\s*(\S+)", status, re.MULTILINE)
    return tuple(numa.parse_cpu_list(found[1])) if found else ()


def _with_cores(topology: numa.Topology, num_threads: int, first: int | None) -> numa.Node | None:
    """A node with a core for each thread and memory that this process may use: `first` if it qualifies, otherwise the
    one with the most cores."""
    fitting = [node for node in topology.nodes if node.memory_allowed and len(node.cores) >= num_threads]
    return max(fitting, key=lambda node: (node.index == first, len(node.cores)), default=None)


def _near_memory(topology: numa.Topology, node: int | None) -> int | None:
    """The node of a thread; None if this process may not use the node's memory, because then no byte is local."""
    return None if any(each.index == node and not each.memory_allowed for each in topology.nodes) else node


def _only_node(topology: numa.Topology, cpus: Iterable[int]) -> int | None:
    nodes = {topology.node_of(cpu) for cpu in cpus}
    return nodes.pop() if len(nodes) == 1 else None
