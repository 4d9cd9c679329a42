"""A compiled grammar as the engine uses it: one state a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from ballast.errors import RequestError

MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Thought:
    """What may come before the constrained text. It is free, but must end before the reply does."""

    end_id: int
    """The token after which the grammar begins."""
    begin_id: int | None
    """A reply that begins with this token thinks; None: every reply does."""
    banned_ids: frozenset[int] = frozenset()
    """Tokens that would end it otherwise."""


class Grammar:
    """Implements the engine's Constraint."""

    def __init__(self, matcher: LLMatcher, param: str, vocab_size: int, thought: Thought | None) -> None:
        self._matcher = matcher
        self._param = param
        self._vocab_size = vocab_size
        self._thought = thought

    def start(self) -> GrammarState:
        """At the first generated token."""
        return GrammarState(self._matcher.deep_copy(), self._param, self._vocab_size, self._thought)


class GrammarState:
    """Implements the engine's ConstraintState."""

    def __init__(self, matcher: LLMatcher, param: str, vocab_size: int, thought: Thought | None) -> None:
        self._matcher = matcher
        self._param = param
        self._vocab_size = vocab_size
        self._thought = thought
        self._thinks = thought is not None and thought.begin_id is None
        self._begun = False

    def allowed(self) -> NDArray[np.bool_]:
        """[vocabulary] the tokens that may come next."""
        thought = self._thought
        if thought is not None and self._thinks:
            free = np.ones(self._vocab_size, np.bool_)
            free[list(thought.banned_ids)] = False
            return free
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise grammar_error(self._matcher, self._param)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if thought is not None and thought.begin_id is not None and not self._begun:
            mask[thought.begin_id] = True
        return mask

    def accept(self, token_id: int) -> None:
        """Go on by one allowed token. Raises RequestError as `allowed` does."""
        thought = self._thought
        if thought is not None and self._thinks:
            self._thinks = token_id != thought.end_id
        elif thought is not None and token_id == thought.begin_id and not self._begun:
            self._thinks = True
        elif not self._matcher.consume_token(token_id):
            raise grammar_error(self._matcher, self._param)
        self._begun = True


def grammar_error(matcher: LLMatcher, param: str) -> RequestError:
    """What llguidance says, in one line."""
    reason = " ".join(matcher.get_error().split()).replace(" | <non-verbose/>", "").replace(" <non-verbose/>", "")
    if reason == "NoExtensionBias":
        reason = "no text follows it, as in a schema that refers only to itself"
    return RequestError(f"{param}: the grammar cannot be enforced: {reason[:MAX_REASON_CHARS]}", param=param)
