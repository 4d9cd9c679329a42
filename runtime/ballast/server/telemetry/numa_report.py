"""The NUMA report of `/debug/numa` and the metrics, read from the running process off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballast.host.numa import NumaReport, WeightMemory, format_cpus, read_report


class NumaProbe(Collector):
    """Caches the latest report and reads it again on demand when it is too old. Never reads concurrently."""

    def __init__(self, read: Callable[[WeightMemory, str], NumaReport] = read_report) -> None:
        self._read = read
        self._subject = (WeightMemory(), "")
        self._changed_at = -1.0
        self._report: NumaReport | None = None
        self._read_at = -2.0
        self._reading: asyncio.Task[None] | None = None

    def watch(self, memory: WeightMemory, why_not_pinned: str) -> None:
        """Set the weights to report on, and why threads are not pinned. Thread-safe."""
        self._subject = (memory, why_not_pinned)
        self._changed_at = time.monotonic()

    async def report(self, max_age_s: float) -> tuple[NumaReport, float]:
        """A report that is at most `max_age_s` old at the time of the call, and its age in seconds on return."""
        oldest = time.monotonic() - max_age_s
        while self._report is None or self._read_at < max(self._changed_at, oldest):
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._refresh())
            await asyncio.shield(self._reading)
        return self._report, time.monotonic() - self._read_at

    async def _refresh(self) -> None:
        began = time.monotonic()
        self._report = await asyncio.to_thread(self._read, *self._subject)
        self._read_at = began

    def collect(self) -> Iterator[Metric]:
        """The latest report as metrics. Without a report, most metrics have no samples."""
        experts = GaugeMetricFamily(
            "ballast_numa_expert_bytes", "Resident bytes of routed experts, by NUMA node.", labels=["node"]
        )
        policy = GaugeMetricFamily(
            "ballast_numa_mempolicy_available", "Whether the kernel lets this process set memory policies."
        )
        local = GaugeMetricFamily(
            "ballast_numa_local_ratio", "Fraction of the weights on the NUMA node of the threads that read them."
        )
        pinned = GaugeMetricFamily(
            "ballast_numa_threads_pinned", "Whether each compute thread is pinned to its own CPUs."
        )
        for_gpu = GaugeMetricFamily(
            "ballast_host_pinned_bytes", "Bytes of routed experts in pinned host memory for a GPU."
        )
        for_gpu.add_metric([], self._subject[0].pinned_bytes)
        if self._report is not None:
            if self._report.share_local is not None:
                local.add_metric([], self._report.share_local)
            pinned.add_metric([], float(self._report.pinned))
            for node in self._report.nodes:
                if node.expert_bytes is not None:
                    experts.add_metric([str(node.node)], node.expert_bytes)
            policy.add_metric([], float(self._report.mempolicy_available))
        return iter((experts, policy, local, pinned, for_gpu))


def to_json(report: NumaReport, age_s: float) -> dict[str, Any]:
    """The report as JSON: CPUs and nodes as the kernel's lists, sizes in bytes, null for unknown values."""
    return {
        "cpus": format_cpus(report.cpus),
        "shared_core_cpus": format_cpus(report.shared_core_cpus),
        "memory_nodes": format_cpus(report.memory_nodes),
        "gpu_node": report.gpu_node,
        "gpus": [{"name": gpu.name, "product": gpu.product, "node": gpu.node} for gpu in report.gpus],
        "pinned": report.pinned,
        "pinned_reason": report.pinned_reason,
        "share_local": report.share_local,
        "mempolicy_available": report.mempolicy_available,
        "nodes": [
            {
                "node": node.node,
                "cpus": format_cpus(node.cpus),
                "usable_cores": node.num_usable_cores,
                "memory_allowed": node.memory_allowed,
                "threads": node.num_threads,
                "expert_bytes": node.expert_bytes,
                "weight_bytes": node.weight_bytes,
            }
            for node in report.nodes
        ],
        "threads": [{"name": thread.name, "cpus": format_cpus(thread.cpus)} for thread in report.threads],
        "age_s": round(age_s, 3),
    }
