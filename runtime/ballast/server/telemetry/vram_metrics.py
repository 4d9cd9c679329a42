"""Metrics of a GPU's memory: the memory that torch has allocated, and the plan's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballast.host.gpu import taken_vram


@dataclass(frozen=True, slots=True)
class VramProbe(Collector):
    """Metrics of `device`. Zero on a CPU, so that all servers have the same metrics."""

    device: str
    limit_bytes: int | None
    taken: Callable[[str], tuple[int, int]] = taken_vram

    def collect(self) -> Iterator[Metric]:
        """Reads torch's allocator, not the device, which may be lost or hang."""
        allocated = GaugeMetricFamily("ballast_vram_allocated_bytes", "Bytes of GPU memory that tensors use.")
        reserved = GaugeMetricFamily(
            "ballast_vram_reserved_bytes", "Bytes of GPU memory that torch has reserved for tensors."
        )
        limit = GaugeMetricFamily(
            "ballast_vram_limit_bytes",
            "Bytes of GPU memory that the plan may use, including CUDA's own; 0 on the CPU.",
        )
        in_tensors, in_all = (0, 0) if self.device == "cpu" else self.taken(self.device)
        allocated.add_metric([], in_tensors)
        reserved.add_metric([], in_all)
        limit.add_metric([], self.limit_bytes or 0)
        return iter((allocated, reserved, limit))
