"""Whether a request may join the queue, and when one that may not should come back. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ballast.errors import CapacityError

MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits, and how fast it gets on."""

    num_waiting: int
    """Requests; negative while that many more would start at once."""
    waiting_tokens: int
    """Of their prompts."""
    max_batch_size: int
    mean_duration_s: float
    """Of a request, from submission to its last token, lately."""


def check_room(queue: Queue, count: int, num_tokens: int, max_requests: int, max_tokens: int | None) -> None:
    """Let `count` requests with prompts of `num_tokens` in all join the queue, or raise CapacityError.

    Where nothing waits, a prompt may be as long as it likes: it could never come in otherwise.
    """
    waiting = queue.num_waiting
    if waiting + count > max_requests:
        full = f"{waiting} requests wait and the queue holds {max_requests}"
    elif max_tokens is not None and waiting > 0 and queue.waiting_tokens + num_tokens > max_tokens:
        full = f"{queue.waiting_tokens} tokens wait and the queue holds {max_tokens}"
    else:
        return
    wait_s = retry_after_s(queue)
    raise CapacityError(f"{full}; try again in {wait_s} s", retry_after_s=wait_s)


def retry_after_s(queue: Queue) -> int:
    """Seconds until the queue as it is will have been served, at the rate of late; at least 1, at most a minute."""
    turns = (max(0, queue.num_waiting) + 1) / queue.max_batch_size
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(turns * queue.mean_duration_s)))
