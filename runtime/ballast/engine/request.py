"""What goes into the engine and what comes out: plain data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended by itself, as OpenAI's wire format calls it."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen. Nothing here depends on what else is in the batch."""

    max_tokens: int
    """Exact upper bound on generated tokens, ≥ 1."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    seed: int | None = None
    """Same seed, same prompt: same tokens. None draws a seed when the request is submitted."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the request (the model's end tokens among them). The token itself is delivered."""
    min_tokens: int = 0
    """Stop tokens are not sampled before this many tokens."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. `id` is for logs and `/debug/state`; it need not be unique."""

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Output:
    """One delivery to a stream: the tokens of one step, and at the end the reason.

    `finish_reason` is set exactly once, on the last output. `cached_tokens` (prompt tokens that the prefix
    cache saved) is set on the first output and stays.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
