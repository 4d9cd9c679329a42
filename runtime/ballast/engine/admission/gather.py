"""How long an idle engine waits for further requests before its first step. Pure.

Users who send at the same time reach the engine some milliseconds apart. A step with only the first prompt would delay
the others by a step, and a pass costs nearly the same for one prompt as for many.
"""

from __future__ import annotations

GATHER_FRACTION = 0.1
"""Longest wait, as a fraction of the duration of the step over the gathered prompts."""
IDLE_FRACTION = 0.02
"""The wait ends after this fraction of that duration without an arrival, unless requests are being tokenised."""
LONGEST_S = 0.2
"""Longest wait in any case, in seconds."""


def gather_s(step_s: float, waited_s: float, quiet_s: float, num_arriving: int) -> float:
    """Seconds that the engine should wait before it checks again; 0: it starts the step.

    `step_s`: cost of the step over all prompts gathered so far; `waited_s`: since the first one arrived; `quiet_s`:
    since the last one arrived; `num_arriving`: requests that are being tokenised."""
    left_s = min(GATHER_FRACTION * step_s, LONGEST_S) - waited_s
    if num_arriving == 0:
        left_s = min(left_s, IDLE_FRACTION * step_s - quiet_s)
    return max(0.0, left_s)
