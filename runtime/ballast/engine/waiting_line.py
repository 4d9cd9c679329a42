"""Who waits for a first step, counted by client: what a request that comes now has before it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is served before a request that comes now."""

    num_requests: float
    num_tokens: float
    """Of their prompts."""


@dataclass(slots=True)
class _Waiting:
    num_requests: int = 0
    num_tokens: int = 0


class WaitingLine:
    """Requests that never ran, by priority and client. A client is forgotten once none of its requests wait."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], _Waiting] = {}

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all that wait."""
        return sum(each.num_tokens for each in self._waiting.values())

    @property
    def num_clients(self) -> int:
        """Clients that wait; one that waits in two priorities counts twice."""
        return len(self._waiting)

    def join(self, priority: int, client: int, num_tokens: int) -> None:
        """A request has come."""
        each = self._waiting.setdefault((priority, client), _Waiting())
        each.num_requests += 1
        each.num_tokens += num_tokens

    def leave(self, priority: int, client: int, num_tokens: int) -> None:
        """One that came so has been admitted, or has gone."""
        each = self._waiting[priority, client]
        each.num_requests -= 1
        each.num_tokens -= num_tokens
        if not each.num_requests:
            del self._waiting[priority, client]

    def ahead(self, priority: int, client: int) -> Ahead:
        """What a client's next request waits for: all of lower priorities, its own of the same one, and as many turns
        of each other client as it takes itself until then. Those who come later are not foreseen."""
        own = self._waiting.get((priority, client), _Waiting())
        turns = own.num_requests + 1
        num_requests = num_tokens = 0.0
        for (other_priority, other_client), each in self._waiting.items():
            if other_priority > priority:
                continue
            is_before = other_priority < priority or other_client == client
            share = 1.0 if is_before else min(1.0, turns / each.num_requests)
            num_requests += share * each.num_requests
            num_tokens += share * each.num_tokens
        return Ahead(num_requests, num_tokens)
