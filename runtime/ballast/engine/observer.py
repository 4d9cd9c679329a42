"""What the engine tells whoever measures it. Every hook is called on the engine thread and must not block."""

from __future__ import annotations

from typing import Literal, Protocol

StepKind = Literal["prefill", "decode", "mixed"]


class EngineObserver(Protocol):
    """Receives the engine's times and counts as they happen; durations in seconds."""

    def on_step(self, kind: StepKind, duration_s: float, num_tokens: int) -> None:
        """A step has run over `num_tokens` tokens."""

    def on_first_token(self, ttft_s: float, queue_s: float) -> None:
        """A request got its first token; both times count from its submission."""

    def on_inter_token(self, latency_s: float) -> None:
        """A request got one more token this long after its last."""

    def on_finish(self, duration_s: float) -> None:
        """A request ended by itself, this long after its submission."""


class SilentObserver:
    """Measures nothing."""

    def on_step(self, kind: StepKind, duration_s: float, num_tokens: int) -> None:
        """Ignore."""

    def on_first_token(self, ttft_s: float, queue_s: float) -> None:
        """Ignore."""

    def on_inter_token(self, latency_s: float) -> None:
        """Ignore."""

    def on_finish(self, duration_s: float) -> None:
        """Ignore."""
