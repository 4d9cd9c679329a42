"""A compiled grammar as the engine uses it: one state per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from ballast.errors import RequestError

MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class ReasoningPrefix:
    """Reasoning that may precede the constrained text. It is unconstrained, but must end before the reply."""

    end_id: int
    """The token after which the grammar begins."""
    begin_id: int | None
    """The reply reasons only if this is its first token; None: every reply reasons."""
    banned_ids: frozenset[int] = frozenset()
    """Tokens that would end the reasoning without the end tag."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Implements the engine's Constraint."""

    matcher: LLMatcher
    """Before the first token; each state works on a copy."""
    param: str
    """The request's field with the grammar."""
    vocab_size: int
    reasoning_prefix: ReasoningPrefix | None

    def start(self) -> GrammarState:
        """The state before the first generated token."""
        return GrammarState(self)

    def after(self, token_ids: Sequence[int]) -> GrammarState | None:
        """The state after these tokens; None if the grammar does not allow them. Without a reasoning prefix only."""
        if self.matcher.deep_copy().validate_tokens(list(token_ids)) < len(token_ids):
            return None
        state = self.start()
        for token_id in token_ids:
            state.accept(token_id)
        return state


class GrammarState:
    """Implements the engine's ConstraintState."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher = grammar.matcher.deep_copy()
        self._param = grammar.param
        self._vocab_size = grammar.vocab_size
        self._prefix = grammar.reasoning_prefix
        self._in_reasoning = self._prefix is not None and self._prefix.begin_id is None
        self._begun = False

    def allowed(self) -> NDArray[np.uint8]:
        """The tokens that may come next, as ConstraintState has them. Raises RequestError when the grammar fails."""
        prefix = self._prefix
        if prefix is not None and self._in_reasoning:
            free = np.full((self._vocab_size + 7) // 8, 0xFF, np.uint8)
            for token_id in prefix.banned_ids:
                free[token_id // 8] &= ~_bit_of(token_id)
            return free
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise grammar_error(self._matcher, self._param)
        if prefix is not None and prefix.begin_id is not None and not self._begun:
            mask = mask.copy()
            mask[prefix.begin_id // 8] |= _bit_of(prefix.begin_id)
        return mask

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token. Raises RequestError as `allowed` does."""
        prefix = self._prefix
        if prefix is not None and self._in_reasoning:
            self._in_reasoning = token_id != prefix.end_id
        elif prefix is not None and token_id == prefix.begin_id and not self._begun:
            self._in_reasoning = True
        elif not self._matcher.consume_token(token_id):
            raise grammar_error(self._matcher, self._param)
        self._begun = True


def _bit_of(token_id: int) -> np.uint8:
    return np.uint8(1 << token_id % 8)


def grammar_error(matcher: LLMatcher, param: str) -> RequestError:
    """The error that llguidance reports, in one line."""
    reason = " ".join(matcher.get_error().split()).replace(" | <non-verbose/>", "").replace(" <non-verbose/>", "")
    if reason == "NoExtensionBias":
        reason = "no text matches it, as in a schema that refers only to itself"
    return RequestError(f"{param}: the grammar cannot be enforced: {reason[:MAX_REASON_CHARS]}", param=param)
