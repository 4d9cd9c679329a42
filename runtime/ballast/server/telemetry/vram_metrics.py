"""Metrics of each GPU's memory: the memory that torch has allocated, and the plan's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballast.host.gpu import taken_vram


@dataclass(frozen=True, slots=True)
class VramProbe(Collector):
    """Metrics of each of `gpus`. Zero for a device "cpu" without any, so that all servers have the same metrics."""

    gpus: Sequence[str]
    limits: Sequence[int | None]
    """The limit of each GPU, in bytes."""
    taken: Callable[[str], tuple[int, int]] = taken_vram

    def collect(self) -> Iterator[Metric]:
        """Reads torch's allocator, not the devices, which may be lost or hang."""
        allocated = GaugeMetricFamily(
            "ballast_vram_allocated_bytes", "Bytes of GPU memory that tensors use.", labels=["device"]
        )
        reserved = GaugeMetricFamily(
            "ballast_vram_reserved_bytes", "Bytes of GPU memory that torch has reserved for tensors.", labels=["device"]
        )
        limit = GaugeMetricFamily(
            "ballast_vram_limit_bytes",
            "Bytes of GPU memory that the plan may use, including CUDA's own; 0 on the CPU.",
            labels=["device"],
        )
        for name, limit_bytes in zip(self.gpus, self.limits, strict=True):
            in_tensors, in_all = self.taken(name)
            allocated.add_metric([name], in_tensors)
            reserved.add_metric([name], in_all)
            limit.add_metric([name], limit_bytes or 0)
        if not self.gpus:
            for metric in (allocated, reserved, limit):
                metric.add_metric(["cpu"], 0)
        return iter((allocated, reserved, limit))
