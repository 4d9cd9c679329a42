"""What goes into the engine and what comes out: plain data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ballast.engine.constraint import Constraint
from ballast.engine.logprobs import TokenLogprobs


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
    logprobs: int | None = None
    """How many of the most probable tokens are reported beside each token; None reports nothing."""
    constraint: Constraint | None = None
    """Narrows every choice; takes precedence over `min_tokens` where both leave nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. `id` is for logs and `/debug/state`; it need not be unique."""

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    """The lower is served first; within one, first come, first served."""
    score_prompt: bool = False
    """Report the prompt's log probabilities as `sampling.logprobs` says; the prefix cache is not read then."""
    report_progress: bool = False
    """Report how much of the prompt is computed after each step that computes some."""


@dataclass(frozen=True, slots=True)
class Output:
    """One delivery to a stream: what one step meant for one sequence.

    `finish_reason` is set exactly once, on the sequence's last output. Outputs without tokens carry scores or progress.
    Times are those of `time.monotonic`, in seconds.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    """Prompt tokens that the prefix cache saved; set on the first output and stays."""
    index: int = 0
    """Which of the requests that were submitted together."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One a token, where they were asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """The next tokens of the prompt; the first token of a prompt has none."""
    computed_tokens: int = 0
    """Of the prompt, cached ones included."""
    admitted_s: float = 0.0
    """When the sequence left the queue for the first time."""
    produced_s: float = 0.0
    """When the step ended."""
