"""Log probabilities of a response's text, for its events and its output parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast.wire.openai.logprobs import Spelling
from ballast.wire.piece import ScoredToken


class TextScores:
    """The scores of the tokens outside the reasoning, in order.

    A response usually has one text. With tool calls, it also contains the scores of their tokens.
    """

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._shown: list[dict[str, Any]] = []
        self._num_sent = 0

    def take(self, tokens: Sequence[ScoredToken]) -> None:
        """Add the tokens of a piece."""
        self._shown += [self._entry(token) for token in tokens if token.scores is not None and not token.is_reasoning]

    @property
    def has_new(self) -> bool:
        """Whether some scores have not been sent in an event yet."""
        return self._num_sent < len(self._shown)

    def new(self) -> list[dict[str, Any]]:
        """The scores that have not been sent in an event yet."""
        new, self._num_sent = self._shown[self._num_sent :], len(self._shown)
        return new

    def all(self) -> list[dict[str, Any]]:
        """All scores so far."""
        return list(self._shown)

    def _entry(self, token: ScoredToken) -> dict[str, Any]:
        assert token.scores is not None
        top = [self._one(token_id, logprob) for token_id, logprob in token.scores.top]
        return {**self._one(token.token_id, token.scores.logprob), "top_logprobs": top}

    def _one(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._spelling.token_bytes(token_id)
        return {"token": self._spelling.replaced(token_id), "logprob": logprob, "bytes": list(raw)}
