"""The threads that compute: made where the plan says, with one line in the log about it."""

from __future__ import annotations

import logging

from ballast._core import kernels, numa
from ballast.config import NumaMode
from ballast.numa import plan_threads

log = logging.getLogger(__name__)


def start_threads(
    num_threads: int, mode: NumaMode, topology: numa.Topology | None = None, *, adopt_caller: bool = True
) -> tuple[kernels.ThreadPool, str]:
    """A pool of `num_threads`, and why they are not pinned; empty when they are. With "auto" the calling thread becomes
    the pool's first for good: it should be the one that makes all calls, or `adopt_caller` is False. Without a
    topology, the machine's own."""
    plan = plan_threads(topology or numa.read_topology(), num_threads, mode)
    refusal = ""
    if plan.placement is None:
        pool = kernels.ThreadPool(num_threads)
    else:
        pool = kernels.ThreadPool(plan.placement)
        refusal = pool.pin_refusal
    if mode == "auto" and adopt_caller:
        refusal = pool.adopt_caller() or refusal
    if refusal:
        log.warning("threads run unpinned", extra={"threads": num_threads, "refused": refusal})
    else:
        log.info("threads", extra={"threads": num_threads, "pinned": plan.placement is not None, "why": plan.reason})
    return pool, refusal or ("" if plan.placement else plan.reason)
