"""Hooks for measurements. Each is called on the engine thread and must not block."""

from __future__ import annotations

from typing import Literal, Protocol

from ballast.engine.request import FinishReason

StepKind = Literal["prefill", "decode", "mixed"]


class EngineObserver(Protocol):
    """Receives the engine's durations, in seconds, and counts as they occur."""

    def on_step(self, kind: StepKind, duration_s: float, num_tokens: int) -> None:
        """A step has computed `num_tokens` tokens."""

    def on_first_token(self, ttft_s: float, queue_s: float) -> None:
        """A request got its first token. `ttft_s` runs from submission to the token, `queue_s` to the first step."""

    def on_inter_token(self, latency_s: float) -> None:
        """A request got another token, `latency_s` after the one before."""

    def on_finish(self, duration_s: float, reason: FinishReason, prompt_tokens: int, generated_tokens: int) -> None:
        """A request finished (was not aborted). `duration_s` runs from its submission."""


class SilentObserver:
    """Measures nothing."""

    def on_step(self, kind: StepKind, duration_s: float, num_tokens: int) -> None:
        """Ignore."""

    def on_first_token(self, ttft_s: float, queue_s: float) -> None:
        """Ignore."""

    def on_inter_token(self, latency_s: float) -> None:
        """Ignore."""

    def on_finish(self, duration_s: float, reason: FinishReason, prompt_tokens: int, generated_tokens: int) -> None:
        """Ignore."""
