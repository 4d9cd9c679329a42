"""Which part of a reply is thought. Servers send it in a field of its own, or inside `<think>` at the reply's start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of a reply."""

    text: str
    thought: bool = False


class ThoughtSplitter:
    """Splits content that begins with `<think>`, however it is cut into pieces.

    Tags are left out, and so is the white space around the thought. A `<think>` further on is the model's own words.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = "start"

    def push(self, text: str) -> Iterator[Said]:
        """What has become certain."""
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
            self._state = "thought"
        if self._state == "thought":
            thought, closed, rest = self._held.partition(_CLOSE)
            kept = 0 if closed else _possible_start(thought)
            certain = thought[: len(thought) - kept]
            self._held = rest if closed else thought[len(thought) - kept :]
            if certain:
                yield Said(certain, thought=True)
            if not closed:
                return
            self._state = "gap"
        if self._state == "gap":
            self._held = self._held.lstrip()
            if not self._held:
                return
            self._state = "answer"
        yield Said(self._held)
        self._held = ""

    def finish(self) -> Iterator[Said]:
        """What was held back."""
        if self._held:
            yield Said(self._held, thought=self._state == "thought")
            self._held = ""


def _possible_start(text: str) -> int:
    """Length of the longest end of `text` that could begin the closing tag."""
    return next((size for size in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:size])), 0)
