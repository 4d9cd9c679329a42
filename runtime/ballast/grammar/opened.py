"""Tool calls in a reply that is free to make none: once one is opened, it is one that the client declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast.grammar.constraint import Grammar, GrammarState
from ballast.text.marks import Mark
from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CallsOnceOpened:
    """Implements the engine's Constraint: anything, until a token of `openings`; from there on, to the reply's end,
    `calls`."""

    calls: Grammar
    openings: Mapping[int, tuple[int, ...]]
    """Token id → what the grammar reads when it comes."""

    def start(self) -> CallsOnceOpenedState:
        """At the first generated token."""
        return CallsOnceOpenedState(self)


class CallsOnceOpenedState:
    """Implements the engine's ConstraintState."""

    def __init__(self, constraint: CallsOnceOpened) -> None:
        self._constraint = constraint
        self._calls: GrammarState | None = None

    def allowed(self) -> NDArray[np.bool_] | None:
        """[vocabulary] the tokens that may come next; None: any."""
        return None if self._calls is None else self._calls.allowed()

    def accept(self, token_id: int) -> None:
        """Go on by one allowed token. Raises RequestError when the grammar cannot be enforced further."""
        read: tuple[int, ...] = (token_id,)
        if self._calls is None:
            if token_id not in self._constraint.openings:
                return
            self._calls, read = self._constraint.calls.start(), self._constraint.openings[token_id]
        for each in read:
            self._calls.accept(each)


def openings(tokenizer: Tokenizer) -> dict[int, tuple[int, ...]]:
    """What opens calls: the mark before all of them or, where a model forgets it, the one before each."""
    calls, call = tokenizer.id_of(Mark.CALLS.spelling), tokenizer.id_of(Mark.CALL.spelling)
    return {} if calls is None or call is None else {calls: (calls,), call: (calls, call)}
