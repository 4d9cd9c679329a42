"""A generation request in the engine's form, with the settings of its reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ballast.engine.request import NO_SALT, Request, SamplingParams
from ballast.text.marks import Layout

_UNDIVIDED = Layout()
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as tokens."""

    ids: tuple[int, ...]
    num_added: int = 0
    """Number of leading tokens that the client did not write: a BOS."""
    snapshots_at: tuple[int, ...] = ()
    """See `ballast.engine.request.Request.snapshots_at`."""


@dataclass(frozen=True, slots=True)
class Job:
    """One or more prompts, each continued by `n` choices."""

    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    stop: tuple[str, ...]
    hidden_ids: frozenset[int]
    """Stop tokens that are not part of the text."""
    n: int = 1
    include_stop: bool = False
    """Whether a stop string is part of the text."""
    layout: Layout = _UNDIVIDED
    is_call_forced: bool = False
    """Whether the client named the function to call. The finish reason is then never "tool_calls"."""
    opening: str = ""
    """Text at the end of the prompt that the reply repeats at its start."""
    echo: bool = False
    """Whether the reply begins with the prompt."""
    prompt_logprobs: int | None = None
    """Alternatives to report with each token of the prompt, separate from the text; None: none. Excludes `echo`."""
    discard_tokens: bool = False
    """The client wants no tokens; the one token that the engine generates is dropped."""
    skip_control: bool = True
    """Whether control tokens are left out of the text."""
    hide_reasoning: bool = False
    """Whether reasoning is left out of the reply."""
    stop_reasons: Mapping[int, int | str] = field(default_factory=dict)
    """Stop tokens from the request → the request's name for each: the id, or a stop string of one token."""
    lowered_max_tokens: int | None = None
    """The number of tokens granted, if fewer than requested; None: as requested."""
    priority: int | None = None
    """The requested priority until the server grants one; None: 0."""
    client: int = 0
    """Identifies the client for fair-share rounds."""
    salt: tuple[int, int] = NO_SALT
    """See `ballast.engine.request.Request.salt`."""
    report_progress: bool = False
    snapshot_before: frozenset[int] = frozenset()
    """See `ballast.engine.request.Request.snapshot_before`."""
    ineffective: tuple[str, ...] = ()
    """Fields of the request without an effect on this model."""

    @property
    def num_choices(self) -> int:
        """Number of sequences in the engine."""
        return len(self.prompts) * self.n

    @property
    def _prompt_logprobs(self) -> int | None:
        return self.sampling.logprobs if self.echo else self.prompt_logprobs

    def prompt_of(self, choice: int) -> int:
        """The index of the prompt that a choice continues. Choices are ordered by prompt."""
        return choice // self.n

    def requests(self, request_id: str) -> Iterator[Request]:
        """One engine request per choice."""
        for choice in range(self.num_choices):
            # The first choice of a prompt computes it and reports its scores and progress for all choices.
            is_first = choice % self.n == 0
            prompt = self.prompts[self.prompt_of(choice)]
            yield Request(
                request_id,
                prompt.ids,
                replace(self.sampling, seed=_nth_seed(self.sampling.seed, choice)),
                self.priority or 0,
                self.client,
                self.salt,
                prompt_logprobs=self._prompt_logprobs if is_first else None,
                report_progress=is_first and self.report_progress,
                snapshots_at=prompt.snapshots_at,
                snapshot_before=self.snapshot_before,
            )


def _nth_seed(seed: int | None, n: int) -> int | None:
    """The request's seed for choice 0; for the others, well-mixed seeds derived from it (splitmix64)."""
    if seed is None or n == 0:
        return seed
    mixed = (seed + n * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
