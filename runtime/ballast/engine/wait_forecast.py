"""Predicts how long a request would wait for its first step, by what was measured. Pure.

It waits for a slot of the batch, and for the prompts before it to be computed; whichever takes longer. Slots are free
as fast as requests end, `RetrySchedule.run_s`. Prompts take what steps cost, less what the prefix cache has of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ballast.engine.waiting_line import Ahead

_MEASURED_PROMPTS = 64
"""About as many of the latest prompts say how much of one the prefix cache has."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs, after a step."""

    num_running: int
    num_slots: int
    """Requests that can run together: fewer than the batch has where memory is short."""
    num_preempted: int = 0
    """Requests that have run, and wait to go on: they come first."""
    prompt_tokens: int = 0
    """Tokens that are still to be computed of the prompts of those that run."""
    num_decode: int = 0
    """Requests that decode."""

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return self.num_slots - self.num_running - self.num_preempted


class PromptShare:
    """The share of prompts that steps compute, 0…1; the prefix cache has the rest. As of the latest prompts."""

    def __init__(self) -> None:
        self._kept = 1 - 1 / _MEASURED_PROMPTS
        self._num_tokens = 0.0
        self._num_computed = 0.0

    def note(self, num_tokens: int, num_cached: int) -> None:
        """A prompt was admitted."""
        self._num_tokens = self._kept * self._num_tokens + num_tokens
        self._num_computed = self._kept * self._num_computed + num_tokens - num_cached

    @property
    def value(self) -> float:
        """1 before any prompt."""
        return self._num_computed / self._num_tokens if self._num_tokens else 1.0


def predicted_wait_s(
    batch: Batch,
    ahead: Ahead,
    run_s: float,
    prompt_share: float,
    prompt_seconds: Callable[[int, int], float],
) -> float:
    """Seconds until the first step of a request that comes now. `run_s`: how long a request runs;
    `prompt_seconds(num_tokens, num_decode)`: how long prompts take beside requests that decode."""
    num_places = ahead.num_requests + 1 - batch.num_free
    slot_s = max(0.0, num_places) * run_s / batch.num_slots
    num_tokens = int(batch.prompt_tokens + ahead.num_tokens * prompt_share)
    return max(slot_s, prompt_seconds(num_tokens, batch.num_decode) if num_tokens else 0.0)
