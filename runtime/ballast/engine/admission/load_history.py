"""Statistics of recent requests for predictions: the cached fraction of prompts, and the lengths of replies. Pure."""

from __future__ import annotations

_MEASURED_REQUESTS = 64
"""About as many of the latest requests count."""


class PromptShare:
    """The share of prompts that steps compute, 0…1; the prefix cache has the rest."""

    def __init__(self) -> None:
        self._kept = 1 - 1 / _MEASURED_REQUESTS
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


class ReplyLengths:
    """How long replies are that end by themselves."""

    def __init__(self) -> None:
        self._kept = 1 - 1 / _MEASURED_REQUESTS
        self._num_tokens = 0.0
        self._num_stopped = 0.0
        self._num_limited = 0.0

    def note(self, num_tokens: int, *, stopped: bool) -> None:
        """A reply of `num_tokens` ended: by a stop (`stopped`), or by its max_tokens."""
        self._num_tokens *= self._kept
        self._num_stopped *= self._kept
        self._num_limited *= self._kept
        if stopped:
            self._num_tokens += num_tokens
            self._num_stopped += 1
        else:
            self._num_limited += 1

    @property
    def mean_tokens(self) -> float | None:
        """The mean length of replies that stopped; None while most replies end by their max_tokens, or none ended."""
        if self._num_stopped <= self._num_limited:
            return None
        return self._num_tokens / self._num_stopped
