"""Runs requests through an EngineCore until they finish, on the calling thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ballast.engine.core import BUSY, EngineCore
from ballast.engine.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Generated:
    """The output of one request."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    cached_tokens: int


def generate(core: EngineCore, requests: Iterable[Request], *, first_seq: int = 1) -> list[Generated]:
    """Submit all requests, step until all have finished, and return the results in the order of `requests`."""
    requests = list(requests)
    tokens: dict[int, list[int]] = {}
    reasons: dict[int, FinishReason] = {}
    cached: dict[int, int] = {}
    for offset, request in enumerate(requests):
        tokens[first_seq + offset] = []
        core.add(first_seq + offset, request, request.sampling.seed or 0)
    while len(reasons) < len(requests):
        result = core.step()
        if result is BUSY:
            continue
        assert result.num_tokens > 0, "the scheduler has nothing to run although requests are unfinished"
        cached.update(result.admitted)
        for event in result.events:
            tokens[event.seq].append(event.token_id)
            if event.finish_reason is not None:
                reasons[event.seq] = event.finish_reason
    core.check()
    return [Generated(tuple(tokens[seq]), reasons[seq], cached[seq]) for seq in tokens]
