"""The engine's inputs and outputs. Plain data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from ballast.engine.sampling.constraint import Constraint
from ballast.engine.sampling.logprobs import TokenLogprobs


class FinishReason(StrEnum):
    """Why a request finished, with the names of OpenAI's API."""

    STOP = "stop"
    LENGTH = "length"


MAX_TEMPERATURE = 5
MAX_SEED = 2**63 - 1


@dataclass(slots=True, kw_only=True)
class SamplingFields:
    """Sampling parameters as clients send them. Request bodies of all APIs, their schemas and checks, and the library's
    `SamplingParams` derive from this declaration. None: the default of `SamplingParams` below, which has a field of the
    same name."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """0: greedy sampling. Default: 1."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1 keep every token."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    """-1, the default: a seed is drawn for each request."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen. Nothing here depends on the rest of the batch."""

    max_tokens: int
    """Exact upper bound on generated tokens, ≥ 1."""
    min_tokens: int = 0
    """Stop tokens are not sampled before this many tokens."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    """The same seed and prompt give the same tokens. None: a seed is drawn at submission."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the request, the model's end tokens among them. The token itself is delivered too."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """Number of most probable tokens to report with each token; None: no log probabilities at all."""
    constraint: Constraint | None = None
    """Restricts every token. Takes precedence over `min_tokens` if both together allow no token."""


NO_SALT = (0, 0)
"""The salt of requests without one."""


def salt_of(text: str) -> tuple[int, int]:
    """The salt for a client's secret: two words of a digest that does not reveal the secret."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. `id` is for logs and `/debug/state` and need not be unique."""

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    """Lower numbers are served first; equal ones in fair-share rounds of `client`."""
    client: int = 0
    """Identifies the client. Within a priority, each client gets one request per round, first come, first served."""
    salt: tuple[int, int] = NO_SALT
    """Only requests with the same salt share blocks of the prefix cache and of its tiers; see `salt_of`."""
    prompt_logprobs: int | None = None
    """Report the prompt's log probabilities with this many alternatives per token; None: none. Such a request does not
    read the prefix cache."""
    report_progress: bool = False
    """Report the prompt's progress after each step that computes some of it."""
    snapshots_at: tuple[int, ...] = ()
    """Ascending numbers of prompt tokens that later prompts are likely to repeat. There, snapshots of recurrent state
    are kept, if the model has any."""
    snapshot_before: frozenset[int] = frozenset()
    """Tokens of the reply that later prompts may not repeat, nor what follows: a snapshot is kept before the first."""


@dataclass(frozen=True, slots=True)
class Output:
    """One delivery to a stream: the result of one step for one sequence.

    `finish_reason` is set exactly once, on the sequence's last output. Outputs without tokens carry scores or progress.
    Times are those of `time.monotonic`, in seconds.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    """Prompt tokens served by the prefix cache; the same in every output of a sequence."""
    index: int = 0
    """Position among the requests that were submitted together."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, if the request asks for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Scores of the next tokens of the prompt. The first prompt token has none."""
    computed_tokens: int = 0
    """Prompt tokens computed so far, cached ones included."""
    admitted_s: float = 0.0
    """When the sequence left the queue for the first time."""
    produced_s: float = 0.0
    """When the step that produced this output ended."""
