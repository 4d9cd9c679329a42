"""Decides whether a request may join the queue, and when a refused one should come back. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ballast.errors import CapacityError

MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Queue:
    """How much waits, and how fast it is served."""

    num_waiting: int
    """Waiting requests; negative while slots are free: -2 means that two more would start at once."""
    waiting_tokens: int
    """Prompt tokens of the waiting requests."""
    max_batch_size: int
    mean_duration_s: float
    """Recent mean over requests, from submission to last token."""


def check_capacity(queue: Queue, count: int, num_tokens: int, max_requests: int, max_tokens: int | None) -> None:
    """Raise CapacityError unless `count` requests, with prompts of `num_tokens` in all, may join the queue.

    An empty queue takes a prompt of any length; otherwise a long prompt could never be served.
    """
    waiting = queue.num_waiting
    if waiting + count > max_requests:
        full = f"{waiting} requests wait and the queue holds {max_requests}"
    elif max_tokens is not None and waiting > 0 and queue.waiting_tokens + num_tokens > max_tokens:
        full = f"{queue.waiting_tokens} tokens wait and the queue holds {max_tokens}"
    else:
        return
    raise CapacityError.busy(full, retry_after_s=retry_after_s(queue))


def retry_after_s(queue: Queue) -> int:
    """Seconds until the present queue is served at the recent rate, from 1 to MAX_RETRY_AFTER_S."""
    turns = (max(0, queue.num_waiting) + 1) / queue.max_batch_size
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(turns * queue.mean_duration_s)))
