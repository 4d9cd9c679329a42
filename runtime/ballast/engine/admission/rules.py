"""Decides whether a request may join the queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Queue:
    """How much waits."""

    num_waiting: int
    """Waiting requests; negative while slots are free: -2 means that two more would start immediately."""
    waiting_tokens: int
    """Prompt tokens of the waiting requests."""


def reason_to_refuse(
    queue: Queue, count: int, num_tokens: int, max_requests: int, max_tokens: int | None
) -> str | None:
    """Why `count` requests with `num_tokens` prompt tokens in total may not join the queue; None if they may.

    An empty queue accepts a prompt of any length; otherwise a long prompt could never be served.
    """
    waiting = queue.num_waiting
    if waiting + count > max_requests:
        return f"{waiting} requests wait and the queue holds {max_requests}"
    if max_tokens is not None and waiting > 0 and queue.waiting_tokens + num_tokens > max_tokens:
        return f"{queue.waiting_tokens} tokens wait and the queue holds {max_tokens}"
    return None


def reason_not_to_wait(wait_s: float, longest_s: float) -> str | None:
    """Why a request with a predicted queue time of `wait_s` may not join the queue; None if it may."""
    if wait_s <= longest_s:
        return None
    return f"the predicted queue time is {wait_s:.1f} s and --max_queue_wait_s is {longest_s:g}"
