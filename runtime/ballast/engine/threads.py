"""Starts the compute threads on the planned CPUs and logs where they run."""

from __future__ import annotations

import logging

from ballast._core import kernels, numa
from ballast.host.numa import plan_threads, read_gpu_node
from ballast.host.numa_mode import NumaMode

log = logging.getLogger(__name__)


def start_threads(
    num_threads: int, mode: NumaMode, topology: numa.Topology | None = None, *, adopt_caller: bool = True
) -> tuple[kernels.ThreadPool, str]:
    """A pool of `num_threads`, and why its threads are not pinned ("" if they are).

    Unless mode is "off" or `adopt_caller` is False, the calling thread becomes the pool's first thread permanently; it
    should then be the thread that makes all calls. `topology` None: the machine's own topology, and where its GPU is
    attached.
    """
    gpu_node = read_gpu_node() if topology is None else None
    plan = plan_threads(topology or numa.read_topology(), num_threads, mode, gpu_node)
    refusal = ""
    if plan.placement is None:
        pool = kernels.ThreadPool(num_threads)
    else:
        pool = kernels.ThreadPool(plan.placement)
        refusal = pool.pin_refusal
    if mode != "off" and adopt_caller:
        refusal = pool.adopt_caller() or refusal
    if refusal:
        log.warning("threads run unpinned", extra={"threads": num_threads, "refused": refusal})
    else:
        log.info("threads", extra={"threads": num_threads, "pinned": plan.placement is not None, "why": plan.reason})
    return pool, refusal or ("" if plan.placement else plan.reason)
