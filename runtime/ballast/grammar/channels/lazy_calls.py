"""A grammar for calls on channels. It applies once a header names a recipient; other messages are unconstrained."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast.families.marks import Mark
from ballast.grammar.constraint import Grammar, GrammarState

_ROLE = "assistant"
_NAMES_RECIPIENT = re.compile(r"(?:\A|\s)to(?:=|\Z)")


@dataclass(frozen=True, slots=True)
class LazyChannelCalls:
    """Implements the engine's Constraint."""

    calls: Grammar
    """The grammar of a call, starting with its header."""
    marks: Mapping[int, Mark]
    token_bytes: Callable[[int], bytes]
    begins_in_header: bool = True

    def start(self) -> LazyChannelCallsState:
        """The state before the first generated token."""
        return LazyChannelCallsState(self)


class LazyChannelCallsState:
    """Implements the engine's ConstraintState."""

    def __init__(self, constraint: LazyChannelCalls) -> None:
        self._constraint = constraint
        self._calls: GrammarState | None = None
        self._in_header = constraint.begins_in_header
        self._ids: list[int] = []
        """The header's tokens, without the role."""
        self._text = ""

    def allowed(self) -> NDArray[np.uint8] | None:
        """The tokens that may come next, as ConstraintState has them."""
        return None if self._calls is None else self._calls.allowed()

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token. Raises RequestError when the grammar cannot be enforced any further."""
        if self._calls is not None:
            self._calls.accept(token_id)
            return
        match self._constraint.marks.get(token_id):
            case Mark.START | Mark.END:
                self._in_header, self._ids, self._text = True, [], ""
            case Mark.MESSAGE:
                self._in_header = False
            case Mark.CHANNEL if not self._in_header:
                self._in_header, self._ids, self._text = True, [token_id], " "
            case mark if self._in_header:
                spelled = " " if mark else self._constraint.token_bytes(token_id).decode("utf-8", errors="replace")
                self._more_header(token_id, spelled)

    def _more_header(self, token_id: int, spelled: str) -> None:
        self._ids.append(token_id)
        self._text += spelled
        if self._text == _ROLE:
            self._ids, self._text = [], ""
        if _NAMES_RECIPIENT.search(self._text):
            self._calls = self._constraint.calls.after(self._ids)
            # The rest of a header that cannot belong to a call is not examined.
            self._in_header = False
