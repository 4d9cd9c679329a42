"""The limits of one engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits per request and of the queue."""

    max_new_tokens: int
    max_model_tokens: int
    """Most tokens of one request, prompt and reply together."""
    max_batch_size: int
    max_queue: int
    max_queue_tokens: int | None = None
    """Most prompt tokens that may wait; None: only the number of requests is limited."""
    max_queue_wait_s: float = 0.0
    """Longest predicted queue time of an accepted request, in seconds; 0: no limit."""
