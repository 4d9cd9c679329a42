"""A request that the engine holds, from submission to its last output."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ballast.engine.request import FinishReason, Output, Request
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.engine.stream import RequestStream


@dataclass(slots=True)
class LiveRequest:
    """One sequence and its progress."""

    stream: RequestStream
    index: int
    """Position of its sequence in the stream."""
    request: Request
    leader: int | None
    """The sequence of the same stream that computes the same prompt first."""
    seed: int
    submitted: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    last_token: float = 0.0
    cached_tokens: int = 0
    num_generated: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens to compute: a prompt that several sequences share counts once."""
        return len(self.request.prompt_ids) if self.leader is None else 0

    def output(
        self,
        now: float,
        *,
        computed_tokens: int,
        token_ids: tuple[int, ...] = (),
        finish_reason: FinishReason | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> Output:
        """The output of a step that ended at the time `now`."""
        return Output(
            token_ids,
            finish_reason,
            self.cached_tokens,
            self.index,
            logprobs,
            prompt_logprobs,
            computed_tokens,
            self.admitted,
            now,
        )

    def description(
        self, now: float, state: str, num_tokens: int, num_computed: int, num_blocks: int
    ) -> dict[str, object]:
        """The request's entry in `/debug/state`; the other arguments come from the scheduler."""
        return {
            "id": self.request.id,
            "index": self.index,
            "state": state,
            "priority": self.request.priority,
            "tokens": num_tokens,
            "computed_tokens": num_computed,
            "kv_blocks": num_blocks,
            "generated_tokens": self.num_generated,
            "cached_tokens": self.cached_tokens,
            "age_s": round(now - self.submitted, 3),
        }


def live_requests(stream: RequestStream, seqs: Sequence[int], requests: Sequence[Request]) -> list[LiveRequest]:
    """Requests that were submitted together. The first one with a prompt leads the others with the same prompt."""
    leaders: dict[tuple[int, tuple[int, ...], tuple[int, int]], int] = {}
    found = []
    for index, (seq, request) in enumerate(zip(seqs, requests, strict=True)):
        leader = leaders.setdefault((request.priority, request.prompt_ids, request.salt), seq)
        seed = request.sampling.seed
        found.append(
            LiveRequest(
                stream,
                index,
                request,
                leader if leader != seq else None,
                secrets.randbits(63) if seed is None else seed,
            )
        )
    return found
