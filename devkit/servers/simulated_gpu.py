"""`ballast serve` on a simulated GPU: torch's CPU device computes instead.

    python -m devkit.servers.simulated_gpu --port 0 --device cuda [any option of `ballast serve`]

All other parts of a start on a GPU are real: the memory plan, the loading stages, warm-up, the order of captures, the
tier in host memory, and the measurements. Weights become float32, and experts must have float types.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ballast import cli
from ballast.host import gpu
from ballast.model.hybrid.backends import selection
from ballast.model.hybrid.devices import device as device_module
from ballast.model.hybrid.graphs.decode_graphs import DecodeGraphs
from ballast.model.hybrid.platforms.platform_of import PLATFORMS
from devkit.models.cpu_backend import CpuBackend
from devkit.models.cpu_platform import CpuPlatform
from devkit.models.float_experts import FloatExperts

MEMORY_BYTES = 80 << 30


def in_place_of(device: torch.device) -> torch.device:
    """The name of the CPU's memory for a GPU."""
    return torch.device("cpu", device.index)


class QueuedGraphs(DecodeGraphs):
    """Graphs whose replay queues the captured work again."""

    def _capture(self, size: int, run: Callable[[int], None], queue: Callable[[int], None]) -> None:
        run(size)
        graph: Any = SimpleNamespace(replay=lambda: queue(size))
        self._graphs[size] = graph


class SimulatedBackend(CpuBackend):
    """Supports warm-up, captures decode steps, and reads experts in host memory."""

    compiles = True
    captures_graphs = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(in_place_of(device), FloatExperts)


def main(argv: Sequence[str]) -> int:
    """Serve until stopped."""
    torch.set_num_threads(1)
    properties = SimpleNamespace(
        name="Simulated",
        total_memory=MEMORY_BYTES,
        multi_processor_count=3,
        pci_domain_id=0,
        pci_bus_id=0,
        pci_device_id=0,
    )
    replaced: dict[Any, dict[str, Callable[..., Any]]] = {
        gpu: {"why_unusable": lambda name: None, "why_no_driver_device": lambda: None},
        torch.cuda: {
            "mem_get_info": lambda *_: (MEMORY_BYTES, MEMORY_BYTES),
            "get_device_properties": lambda _: properties,
            "set_device": lambda _: None,
            "set_per_process_memory_fraction": lambda *_: None,
            "graph_pool_handle": lambda: None,
        },
        device_module: {"DecodeGraphs": QueuedGraphs},
    }
    for module, functions in replaced.items():
        for name, function in functions.items():
            assert hasattr(module, name)
            setattr(module, name, function)
    selection.MAKERS["cuda"] = SimulatedBackend
    PLATFORMS["cuda"] = lambda device: CpuPlatform(in_place_of(device))
    return cli.main(["serve", *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
