"""Metrics of the GPUs' memory: the memory that torch has allocated, and the plan's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballast.host.gpu import taken_vram


@dataclass(frozen=True, slots=True)
class VramProbe(Collector):
    """Metrics of `gpus` together. Zero without any, so that all servers have the same metrics."""

    gpus: Sequence[str]
    limit_bytes: int | None
    """The limit of each GPU."""
    taken: Callable[[str], tuple[int, int]] = taken_vram

    def collect(self) -> Iterator[Metric]:
        """Reads torch's allocator, not the devices, which may be lost or hang."""
        allocated = GaugeMetricFamily("ballast_vram_allocated_bytes", "Bytes of GPU memory that tensors use.")
        reserved = GaugeMetricFamily(
            "ballast_vram_reserved_bytes", "Bytes of GPU memory that torch has reserved for tensors."
        )
        limit = GaugeMetricFamily(
            "ballast_vram_limit_bytes",
            "Bytes of GPU memory that the plan may use, including CUDA's own; 0 on the CPU.",
        )
        taken = [self.taken(name) for name in self.gpus]
        allocated.add_metric([], sum(in_tensors for in_tensors, _ in taken))
        reserved.add_metric([], sum(in_all for _, in_all in taken))
        limit.add_metric([], len(self.gpus) * (self.limit_bytes or 0))
        return iter((allocated, reserved, limit))
