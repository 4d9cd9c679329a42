"""The limits of one engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a request may use, and how many may wait."""

    max_new_tokens: int
    max_model_tokens: int
    """Prompt and generated tokens of one request, together."""
    max_batch_size: int
    max_queue: int
    max_queue_tokens: int | None = None
    """Prompt tokens that may wait; None: no bound but the number of requests."""
    max_queue_wait_s: float = 0.0
    """Longest predicted queue time of an accepted request, in seconds; 0: no limit."""
