"""Starts the compute threads on the planned CPUs and logs where they run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ballast._core import kernels, numa
from ballast.host.numa import common_node, plan_threads, read_gpus
from ballast.host.numa_mode import NumaMode

log = logging.getLogger(__name__)


def start_threads(
    num_threads: int,
    mode: NumaMode,
    topology: numa.Topology | None = None,
    gpus: Sequence[str] = (),
    *,
    adopt_caller: bool = True,
) -> tuple[kernels.ThreadPool, str]:
    """A pool of `num_threads`, and why its threads are not pinned ("" if they are).

    Unless mode is "off" or `adopt_caller` is False, the calling thread becomes the pool's first thread permanently; it
    should then be the thread that makes all calls. `topology` None: the machine's own. `gpus`: the model's, such as
    "cuda:0"; their node is preferred by mode "single".
    """
    plan = plan_threads(topology or numa.read_topology(), num_threads, mode, common_node(read_gpus(gpus)))
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
