"""A grammar for tool calls. It applies once the reply begins a call; the text before is unconstrained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast.families.marks import Mark
from ballast.grammar.calls.dsml_calls import BEFORE_TAGS
from ballast.grammar.constraint import Grammar, GrammarState
from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LazyToolGrammar:
    """Implements the engine's Constraint: any text up to a trigger token, then `calls` to the end of the reply."""

    calls: Grammar
    triggers: Mapping[int, tuple[int, ...]]
    """Token id → the ids that the grammar reads instead."""

    def start(self) -> LazyToolGrammarState:
        """The state before the first generated token."""
        return LazyToolGrammarState(self)


class LazyToolGrammarState:
    """Implements the engine's ConstraintState."""

    def __init__(self, constraint: LazyToolGrammar) -> None:
        self._constraint = constraint
        self._calls: GrammarState | None = None

    def allowed(self) -> NDArray[np.uint8] | None:
        """The tokens that may come next, as ConstraintState has them."""
        return None if self._calls is None else self._calls.allowed()

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token. Raises RequestError when the grammar cannot be enforced any further."""
        read: tuple[int, ...] = (token_id,)
        if self._calls is None:
            if token_id not in self._constraint.triggers:
                return
            self._calls, read = self._constraint.calls.start(), self._constraint.triggers[token_id]
        for each in read:
            self._calls.accept(each)


def trigger_tokens(tokenizer: Tokenizer) -> dict[int, tuple[int, ...]]:
    """The tokens that begin tool calls, as `LazyToolGrammar.triggers`.

    It is the mark before all calls if the family has one; some models omit it and begin with the mark before a
    single call. Where the mark stands within a tag, the text before it has been written already.
    """
    spellings = tokenizer.reply.spellings
    if Mark.TAG in spellings:
        tag = tokenizer.id_of(spellings[Mark.TAG])
        return {} if tag is None else {tag: (*tokenizer.encode(BEFORE_TAGS), tag)}
    ids = [tokenizer.id_of(spellings[mark]) for mark in (Mark.CALLS, Mark.CALL) if mark in spellings]
    known = tuple(token_id for token_id in ids if token_id is not None)
    return {} if len(known) < len(ids) else {token_id: known[: at + 1] for at, token_id in enumerate(known)}
