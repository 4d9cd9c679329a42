"""The speed of this machine's memory and of a GPU's bus: measured if possible, else from data sheets."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator

from ballast._core import kernels, numa
from ballast.host.machine import Machine, Memory
from ballast.host.numa import plan_threads

READ_BYTES = 1 << 30
"""Bytes that a measurement reads; larger than the last-level cache of nearly all machines."""
_MEMORY_DIVISOR = 4
"""A measurement uses at most 1/_MEMORY_DIVISOR of the available memory."""
_MIN_BYTES = 64 << 20
"""With less, caches would be measured."""

_COPIED_BYTES = 256 << 20
_COPIES = 5

_GPU_GB_PER_S = (
    *(("H200", 4800), ("H100 80GB HBM3", 3350), ("H100 NVL", 3900), ("H100", 2000), ("H20", 4000), ("B200", 8000)),
    *(("A100-SXM4-80GB", 2039), ("A100 80GB", 1935), ("A100", 1555), ("L40S", 864), ("L40", 864), ("L4", 300)),
    *(("RTX 5090", 1792), ("RTX 4090", 1008), ("RTX 3090", 936), ("RTX 6000 Ada", 960), ("RTX A6000", 768)),
    *(("A10", 600), ("T4", 320), ("V100", 900)),
)
"""Parts of GPU names as the driver reports them, longer names first → memory bandwidth from the data sheets."""


def gpu_bytes_per_s(name: str) -> float | None:
    """The memory bandwidth of a GPU model from its data sheet; None for an unknown model."""
    return next((rate * 1e9 for part, rate in _GPU_GB_PER_S if re.search(rf"\b{part}(?![0-9])", name)), None)


def memory_bytes_per_s(num_threads: int, memory: Memory) -> float | None:
    """The rate at which `num_threads` threads read memory, measured in about a second. None if too little memory is
    free or allowed to this process, such as by `ulimit -v`."""
    num_bytes = min(READ_BYTES, memory.available_bytes // _MEMORY_DIVISOR)
    if num_bytes < _MIN_BYTES:
        return None
    placement = plan_threads(numa.read_topology(), num_threads, "auto").placement
    pool = kernels.ThreadPool(num_threads) if placement is None else kernels.ThreadPool(placement)
    return _read_speed(pool, num_bytes)


def by_node(machine: Machine) -> Iterator[tuple[int, int, float]]:
    """For each NUMA node with usable CPUs and memory: its index, the number of reading threads, and bytes per
    second."""
    for node in machine.topology.nodes:
        cpus = [core[0] for core in node.cores]
        num_bytes = min(READ_BYTES, machine.memory.available_bytes // _MEMORY_DIVISOR)
        if cpus and node.memory_allowed and num_bytes >= _MIN_BYTES:
            pool = kernels.ThreadPool(numa.Placement([numa.NodeThreads(node.index, cpus)]))
            speed = _read_speed(pool, num_bytes)
            if speed is not None:
                yield node.index, len(cpus), speed


def copy_bytes_per_s(device: str) -> float:
    """The median rate of copies from pinned memory to "cuda:N". Raises RuntimeError if torch cannot use the device or
    the memory."""
    import torch

    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(_COPIES + 1):  # the first copy warms up
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return _COPIED_BYTES / statistics.median(seconds[1:])


def _read_speed(pool: kernels.ThreadPool, num_bytes: int) -> float | None:
    """Bytes per second; None if a limit of this process leaves too little memory."""
    try:
        return kernels.measure_read_speed(pool, num_bytes)
    except MemoryError:
        return None
