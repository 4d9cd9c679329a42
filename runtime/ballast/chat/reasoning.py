"""Tells a reply's reasoning from its answer.

Servers send reasoning in a field of its own, or inside `<think>` at the beginning of the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """A piece of a reply."""

    text: str
    is_reasoning: bool = False


class ReasoningSplitter:
    """Splits content that begins with `<think>`. How the content is cut into pieces makes no difference.

    The tags are dropped, and so is the white space around the reasoning. A later `<think>` is ordinary text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = "start"

    def push(self, text: str) -> Iterator[ReplyPiece]:
        """Take more content and yield what is certain by now."""
        self._held += text
        if self._state == "start":
            begun = self._held.lstrip()
            if not begun or (_OPEN.startswith(begun) and begun != _OPEN):
                return
            if begun.startswith(_OPEN):
                self._state, self._held = "opening", begun.removeprefix(_OPEN)
            else:
                self._state = "answer"
        if self._state == "opening":
            self._held = self._held.lstrip()
            if not self._held:
                return
            self._state = "reasoning"
        if self._state == "reasoning":
            reasoning, closed, rest = self._held.partition(_CLOSE)
            kept = 0 if closed else _possible_start(reasoning)
            certain = reasoning[: len(reasoning) - kept]
            self._held = rest if closed else reasoning[len(reasoning) - kept :]
            if certain:
                yield ReplyPiece(certain, is_reasoning=True)
            if not closed:
                return
            self._state = "gap"
        if self._state == "gap":
            self._held = self._held.lstrip()
            if not self._held:
                return
            self._state = "answer"
        yield ReplyPiece(self._held)
        self._held = ""

    def finish(self) -> Iterator[ReplyPiece]:
        """What was held back."""
        if self._held:
            yield ReplyPiece(self._held, is_reasoning=self._state == "reasoning")
            self._held = ""


def _possible_start(text: str) -> int:
    """Length of the longest suffix of `text` that could begin the closing tag."""
    return next((size for size in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:size])), 0)
