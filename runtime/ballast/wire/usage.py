"""Token counts and times of a request, and their JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Usage:
    """The token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0

    def to_wire(self) -> dict[str, Any]:
        """The `usage` object of OpenAI's API, with DeepSeek's counts of cache hits and misses."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_cache_hit_tokens": self.cached_tokens,
            "prompt_cache_miss_tokens": self.prompt_tokens - self.cached_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """How fast a request was, as llama.cpp's server reports it. Time in the queue is not counted."""

    usage: Usage
    prompt_s: float
    """From the first prompt's start to the first token."""
    predicted_s: float
    """From the first token to the last."""

    def to_wire(self) -> dict[str, Any]:
        """The `timings` object. Speeds without a measurement are 0."""
        computed = self.usage.prompt_tokens - self.usage.cached_tokens
        decoded = max(0, self.usage.completion_tokens - 1)
        return {
            "cache_n": self.usage.cached_tokens,
            "prompt_n": computed,
            **_speed("prompt", computed, self.prompt_s),
            "predicted_n": self.usage.completion_tokens,
            **_speed("predicted", decoded, self.predicted_s),
        }


class Counts(Protocol):
    """The counts and times of a request so far, computed on access."""

    @property
    def usage(self) -> Usage:
        """In tokens."""

    @property
    def timings(self) -> Timings:
        """In time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a prompt."""

    index: int
    """The choice that computes it."""
    total_tokens: int
    cached_tokens: int
    computed_tokens: int
    """Cached ones included."""
    duration_s: float

    def to_wire(self) -> dict[str, Any]:
        """The `prompt_progress` object of llama.cpp's server."""
        return {
            "total": self.total_tokens,
            "cache": self.cached_tokens,
            "processed": self.computed_tokens,
            "time_ms": round(1000 * self.duration_s, 3),
        }


def _speed(name: str, num_tokens: int, duration_s: float) -> dict[str, float]:
    return {
        f"{name}_ms": round(1000 * duration_s, 3),
        f"{name}_per_token_ms": round(1000 * duration_s / num_tokens, 3) if num_tokens else 0.0,
        f"{name}_per_second": round(num_tokens / duration_s, 3) if duration_s else 0.0,
    }
