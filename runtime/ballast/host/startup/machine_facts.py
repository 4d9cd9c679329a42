"""The facts of a machine and of its software that measured speeds depend on, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ballast import _core
from ballast.host.machine import Machine
from ballast.version import __version__

_PACKAGES = ("torch", "triton", "flashinfer-python")
_PCI_FILES = ("max_link_speed", "max_link_width", "current_link_width", "numa_node")
"""Facts of the PCIe link, without its current speed, which drops while the GPU is idle."""


def machine_facts(machine: Machine, devices: Sequence[str]) -> dict[str, Any]:
    """`devices`: the devices besides the CPU, such as "cuda:0"."""
    compiled = Path(_core.__file__).stat()
    return {
        "ballast": [__version__, compiled.st_size, compiled.st_mtime_ns],
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": [machine.cpu_model, *machine.cpu_flags],
        "nodes": [[len(node.cores), len(node.cpus), node.memory_allowed] for node in machine.topology.nodes],
        "cpu_quota": None if machine.cpu_quota is None else machine.cpu_quota.cpus,
        "memory_gib": round(machine.memory.total_bytes / 2**30),
        "gpus": [gpu_facts(name) for name in devices if name.startswith("cuda")],
    }


def gpu_facts(name: str, root: Path = Path("/")) -> dict[str, Any]:
    """Model, driver and PCIe link of "cuda:N". A value that the system does not report is ""."""
    import torch

    about: Any = torch.cuda.get_device_properties(name)
    address = f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
    return {
        "name": about.name,
        "total_bytes": about.total_memory,
        "multiprocessors": about.multi_processor_count,
        "driver": _text(root / "proc/driver/nvidia/version"),
        "pci": {name: _text(root / "sys/bus/pci/devices" / address / name) for name in _PCI_FILES},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
