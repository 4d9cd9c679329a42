"""Checks whether a process runs on the NUMA nodes that its spec requests, and finds the fault if it does not. Pure.

A report is the runtime's /debug/numa: the kernel's lists of CPUs and nodes, and bytes by node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.api.status import MAX_DEVICE, MAX_GPUS_SHOWN, GpuPlacement, PodPlacement
from ballast_operator.control.deciding.live_pod import Pod

MIN_LOCAL_PERCENT = 99
MAX_NUMBER = 2**16
"""Highest accepted number of a CPU or node, so that a false report cannot exhaust the memory."""

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
"""The exceptions of reading a malformed report."""


@dataclass(frozen=True, slots=True)
class NumaVerdict:
    """Whether one pod is pinned; `pinned` is None if that is unknown."""

    pinned: bool | None
    reason: str
    message: str


def read_placement(pod: Pod, report: Mapping[str, Any]) -> PodPlacement:
    """The pod's entry in `status.placement`. Raises MALFORMED if the report is malformed."""
    share = report["share_local"]
    return PodPlacement(
        pod=pod.name,
        node=pod.node or "",
        cpus=str(report["cpus"]),
        memory_nodes=str(report["memory_nodes"]),
        gpu_numa_node=report["gpu_node"],
        gpus=_read_gpus(report)[:MAX_GPUS_SHOWN] or None,
        local_percent=None if share is None else int(100 * share),
    )


def judge_pinning(spec: InferenceServiceSpec, pod: Pod, report: Mapping[str, Any]) -> NumaVerdict:
    """Checks that the process has the CPUs, memory and GPUs that the spec requests. The verdict names the first fault.

    Raises MALFORMED if the report is malformed.
    """
    cpus, memory = parse_list(report["cpus"]), parse_list(report["memory_nodes"])
    nodes = {node["node"]: parse_list(node["cpus"]) for node in report["nodes"]}
    used = {number for number, members in nodes.items() if cpus & members}
    for check in (
        _exclusive(spec, pod, cpus, nodes),
        _on_one_node(spec, cpus, used),
        _memory(memory, used),
        _gpus(spec, report, used),
        _pages(spec, report["share_local"]),
        _cores(pod, parse_list(report.get("shared_core_cpus", ""))),  # older runtimes do not report it
    ):
        if check is not None:
            return NumaVerdict(False, check[0], f"{pod.name}: {check[1]}")
    return NumaVerdict(
        True,
        "CPUsAndMemoryAligned",
        f"{pod.name} has CPUs {report['cpus']} and memory of NUMA node {report['memory_nodes']} of {pod.node}",
    )


def unknown(pod: Pod, why: str) -> NumaVerdict:
    """The verdict for a pod that could not be queried."""
    return NumaVerdict(None, "ProbeFailed", f"{pod.name}: /debug/numa could not be read: {why}")


def parse_list(text: str) -> set[int]:
    """The numbers of a kernel's list such as "0-3,8". Raises ValueError."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not 0 <= int(first) <= int(last or first) <= MAX_NUMBER:
            raise ValueError(f"{part!r} is not a range of CPUs or nodes")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _exclusive(
    spec: InferenceServiceSpec, pod: Pod, cpus: set[int], nodes: Mapping[int, set[int]]
) -> tuple[str, str] | None:
    requested = spec.resources.cpus
    if pod.qos != "Guaranteed":
        own = {sidecar.name for sidecar in spec.sidecars}
        if names := ", ".join(name for name in pod.other_containers if name not in own):
            return "SidecarInjected", (
                f"the containers {names} were injected into the pod and make it {pod.qos}, so the kubelet assigns no "
                "exclusive CPUs; give them whole requests equal to their limits, or exclude them with spec.podMetadata"
            )
        return "NotGuaranteed", f"the pod is {pod.qos}, not Guaranteed; look for a LimitRange or a mutating webhook"
    everything = set().union(*nodes.values()) if nodes else set()
    if len(cpus) != requested or (everything and cpus == everything):
        return "SharedCPUPool", (
            f"the process may use {len(cpus)} CPUs, but {requested} were requested: they are shared with other pods; "
            f"the kubelet of {pod.node} needs cpuManagerPolicy static"
        )
    return None


def _on_one_node(spec: InferenceServiceSpec, cpus: set[int], used: set[int]) -> tuple[str, str] | None:
    if spec.numa.policy == "SingleNode" and len(used) > 1:
        return "CPUsSpanNodes", (
            f"its CPUs belong to the NUMA nodes {_text(used)}; request fewer, or use numa.policy AllNodes; "
            "topologyManagerPolicy single-numa-node or restricted keeps them together or rejects the pod"
        )
    if not used:
        return "NodesUnknown", "the process cannot determine the NUMA nodes of its CPUs"
    return None


def _memory(memory: set[int], used: set[int]) -> tuple[str, str] | None:
    if memory < used:
        return "MemoryNotPinned", (
            f"its CPUs belong to NUMA node {_text(used)}, but its memory may come only from {_text(memory)}; "
            "topologyManagerPolicy best-effort or stricter assigns both from the same nodes"
        )
    if memory != used:
        return "MemoryNotPinned", (
            f"its CPUs belong to NUMA node {_text(used)}, but its memory may come from {_text(memory)}; the kubelet "
            "needs memoryManagerPolicy Static"
        )
    return None


def _gpus(spec: InferenceServiceSpec, report: Mapping[str, Any], used: set[int]) -> tuple[str, str] | None:
    """SingleNode: all GPUs belong to one node, which has CPUs of the process. AllNodes: each belongs to such a node."""
    if not spec.resources.gpus:
        return None
    of_older_runtime = [GpuPlacement(name="the GPU", numa_node=report["gpu_node"])]
    gpus = _read_gpus(report) if "gpus" in report else of_older_runtime  # an engine on the CPU uses none
    unknown_nodes = [gpu.name for gpu in gpus if gpu.numa_node is None]
    if unknown_nodes:
        return "GPUNodeUnknown", f"the system does not report the NUMA node of {', '.join(unknown_nodes)}"
    places = {gpu.name: gpu.numa_node for gpu in gpus if gpu.numa_node is not None}
    if spec.numa.policy == "SingleNode" and len(set(places.values())) > 1:
        return "GPUsSpanNodes", (
            f"its GPUs belong to several NUMA nodes ({_places(places)}); use numa.policy AllNodes, or "
            "topologyManagerPolicy single-numa-node, which assigns GPUs of one node or rejects the pod"
        )
    remote = {name: node for name, node in places.items() if node not in used}
    if remote:
        return "GPURemote", (
            f"GPUs belong to other NUMA nodes ({_places(remote)}) than its CPUs, which belong to {_text(used)}"
        )
    return None


def _read_gpus(report: Mapping[str, Any]) -> list[GpuPlacement]:
    """The GPUs in the report; empty for older runtimes, which do not list them."""
    return [
        GpuPlacement(
            name=str(gpu["name"])[:MAX_DEVICE],
            product=None if gpu["product"] is None else str(gpu["product"])[:MAX_DEVICE],
            numa_node=gpu["node"],
        )
        for gpu in report.get("gpus", ())
    ]


def _places(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} to {node}" for name, node in nodes.items())


def _pages(spec: InferenceServiceSpec, share_local: float | None) -> tuple[str, str] | None:
    # With several nodes, threads of any node read some of the weights, so the local share is never near one.
    if spec.numa.policy == "SingleNode" and share_local is not None and 100 * share_local < MIN_LOCAL_PERCENT:
        return "RemotePages", f"only {int(100 * share_local)} % of the weights are on the node of the CPUs"
    return None


def _cores(pod: Pod, shared: set[int]) -> tuple[str, str] | None:
    if shared:
        return "SMTSiblingsShared", (
            f"other pods may use hardware threads of the cores of its CPUs {_text(shared)}; request a multiple of the "
            f"threads per core, and set the CPU manager option full-pcpus-only in the kubelet of {pod.node}"
        )
    return None


def _text(numbers: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
