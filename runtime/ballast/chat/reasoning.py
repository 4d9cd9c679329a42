"""Separates a reply's reasoning from its answer.

Servers send reasoning in a field of its own, or between two tags at the beginning of the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ballast.families.marks import Mark
from ballast.families.registry import FAMILIES

_CLOSING = {
    family.reply.spellings[Mark.THINK]: family.reply.spellings[Mark.END_THINK]
    for family in FAMILIES.values()
    if Mark.THINK in family.reply.spellings
}
"""The tag that ends the reasoning, by the tag that begins it."""


@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """Some text of a reply."""

    text: str
    is_reasoning: bool = False


class ReasoningSplitter:
    """Splits content that begins with the reasoning tag of a family. The result does not depend on how it is streamed.

    The tags are dropped, and so is the white space around the reasoning. A later tag is ordinary text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = "start"
        self._close = ""

    def push(self, text: str) -> Iterator[ReplyPiece]:
        """Take more content and yield the text whose kind is certain by now."""
        self._held += text
        if self._state == "start":
            begun = self._held.lstrip()
            opened = next((tag for tag in _CLOSING if begun.startswith(tag)), None)
            if opened is not None:
                self._state, self._held, self._close = "opening", begun.removeprefix(opened), _CLOSING[opened]
            elif any(tag.startswith(begun) for tag in _CLOSING):
                return
            else:
                self._state = "answer"
        if self._state == "opening":
            self._held = self._held.lstrip()
            if not self._held:
                return
            self._state = "reasoning"
        if self._state == "reasoning":
            reasoning, closed, rest = self._held.partition(self._close)
            kept = 0 if closed else _possible_start(reasoning, self._close)
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
        """Yield the text that was held back."""
        if self._held:
            yield ReplyPiece(self._held, is_reasoning=self._state == "reasoning")
            self._held = ""


def _possible_start(text: str, tag: str) -> int:
    """Length of the longest suffix of `text` that could begin `tag`."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
