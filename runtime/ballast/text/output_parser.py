"""Splits a reply into reasoning, content and tool calls while it is generated.

In the text that it reads, marks stand for the tokens that divide a reply (`ballast.text.marks`). How the text is cut
into pieces makes no difference to the joined parts.
"""

from __future__ import annotations

import re

from ballast.families.marks import OPENS_CALLS, Mark
from ballast.text.calls.reader import NewId, ReadCalls
from ballast.text.calls.separated import SeparatedCalls
from ballast.text.marks import Start
from ballast.text.reply_parts import Content, Part, Reasoning, new_call_id

_SPANS = re.compile(f"([{''.join(Mark)}])")
_MARKS = frozenset(Mark)


class OutputParser:
    """The parser of one reply.

    Line breaks that belong to the tags are dropped: at both ends of the reasoning, and before the content that follows.
    Reasoning that is never closed extends to the reply's end, or to the first tool call. Marks are never shown; one
    that means nothing in its place is dropped.
    """

    def __init__(
        self,
        start: Start = Start.CONTENT,
        read_calls: ReadCalls = SeparatedCalls,
        *,
        new_id: NewId = new_call_id,
    ) -> None:
        self._start = start
        self._held = ""
        """White space and a beginning of calls that may or may not be shown; not decided yet."""
        self._at_edge = start is Start.REASONING
        """At the beginning of the reasoning, or of content after reasoning."""
        self._calls = read_calls(new_id)

    @property
    def num_calls(self) -> int:
        """Tool calls so far."""
        return self._calls.num_calls

    def push(self, text: str) -> list[Part]:
        """Take more of the reply and return the parts that are certain."""
        parts: list[Part] = []
        for span in _SPANS.split(text):
            if span in _MARKS:
                parts += self._mark(Mark(span))
            elif span:
                parts += self._calls.text(span) if self._calls.open else self._text(span)
        return parts

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """The parts that were held back. Call once, at the end. `is_cut`: the reply reached its token limit."""
        parts = [] if self._calls.open else self._begin_unopened(is_closed=False)
        if self._calls.open:
            return [*parts, *self._calls.finish(is_cut=is_cut)]
        held, self._held = self._held, ""
        return [self._part(held)] if held else []

    def _text(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        if self._start in (Start.EITHER, Start.EITHER_REASONING):
            if not text.strip():
                self._held = text
                return []
            self._start = Start.REASONING if self._start is Start.EITHER_REASONING else Start.CONTENT
            self._at_edge = self._start is Start.REASONING
        if self._at_edge:
            text = text.lstrip("\n")
            self._at_edge = not text
        shown = text[: self._shown_until(text)]
        if self._start is Start.REASONING:
            shown = shown.rstrip("\n")
        text, self._held = shown, text[len(shown) :]
        return [self._part(text)] if text else []

    def _shown_until(self, text: str) -> int:
        """How much of `text` is no part of calls that may follow."""
        return self._calls.unopened_at(text)

    def _mark(self, mark: Mark) -> list[Part]:
        if self._calls.open or (mark in OPENS_CALLS):
            parts = [] if self._calls.open else self._before_mark()
            return [*parts, *self._calls.mark(mark)]
        if mark is Mark.END_CALL and (parts := self._begin_unopened(is_closed=True)):
            return [*parts, *self._calls.mark(mark)]
        undecided = self._start in (Start.EITHER, Start.EITHER_REASONING)
        if mark is Mark.THINK and (undecided or (self._start is Start.REASONING and self._at_edge)):
            self._start, self._held, self._at_edge = Start.REASONING, "", True
        elif mark is Mark.END_THINK and self._start is not Start.CONTENT:
            parts = self._end_reasoning(len(self._held))
            self._at_edge = True
            return parts
        return []

    def _begin_unopened(self, *, is_closed: bool) -> list[Part]:
        """The beginning of a call whose opening mark is missing; nothing where the text before is none."""
        begin = self._calls.unopened_at(self._held)
        call = self._held[begin:]
        if not self._calls.is_unopened_call(call, is_closed=is_closed):
            return []
        return [*self._leave_reasoning(begin), *self._calls.mark(Mark.CALL), *self._calls.text(call)]

    def _before_mark(self) -> list[Part]:
        """The text before a mark that opens calls, but for what frames them."""
        return self._leave_reasoning(self._shown_until(self._held) if self._calls.is_framed else len(self._held))

    def _leave_reasoning(self, num_shown: int) -> list[Part]:
        """Tool calls begin, which end the reasoning. Of the text that was held, `num_shown` characters precede them."""
        if self._start is Start.REASONING:
            return self._end_reasoning(num_shown)
        held = self._held[:num_shown]
        self._start, self._held, self._at_edge = Start.CONTENT, "", False
        return [Content(held)] if held else []

    def _end_reasoning(self, num_shown: int) -> list[Part]:
        """The rest of the reasoning without its last line breaks. What precedes content or reasoning is dropped."""
        held = self._held[:num_shown].rstrip("\n") if self._start is Start.REASONING else ""
        self._start, self._held, self._at_edge = Start.CONTENT, "", False
        return [Reasoning(held)] if held else []

    def _part(self, text: str) -> Part:
        is_reasoning = self._start in (Start.REASONING, Start.EITHER_REASONING)
        return Reasoning(text) if is_reasoning else Content(text)
