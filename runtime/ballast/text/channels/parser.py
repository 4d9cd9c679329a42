"""Reads replies whose messages are on channels, while they are generated."""

from __future__ import annotations

import re
from collections.abc import Collection

from ballast.families.marks import Mark
from ballast.text.calls.json_value import JsonValue
from ballast.text.calls.reader import NewId
from ballast.text.channels.tracker import ChannelTracker, Section
from ballast.text.reply_parts import CallArguments, CallBegin, Content, Part, Reasoning, new_call_id
from ballast.text.think_tags import ThinkTags

_SPANS = re.compile(f"([{''.join(Mark)}])")
_MARKS = frozenset(Mark)
_BETWEEN = "\n\n"
"""Between the texts of two messages."""


class ChannelParser:
    """The parser of one reply. It has the methods of `OutputParser`.

    A call whose text does not begin with a JSON object becomes content, unchanged; the object itself is not checked,
    because a grammar restricts it in every request with tools. Text after the object is content, but for white
    space. Header texts are not shown, unless a call has nothing else.
    """

    def __init__(
        self,
        section: Section = Section.HEADER,
        functions: Collection[str] | None = None,
        *,
        tags: ThinkTags | None = None,
        new_id: NewId = new_call_id,
    ) -> None:
        """`functions` as ChannelTracker has them. `tags`: reasoning stays in the content, between these."""
        self._tracker = ChannelTracker(section, functions)
        self._tags = tags
        self._new_id = new_id
        self.num_calls = 0
        self._call: _Call | None = None
        self._shown: dict[Section, bool] = {}
        """Places that have text already → whether the next text there is another message's."""
        self._is_tagged = False
        """Whether the tag before the reasoning has been written."""

    def push(self, text: str) -> list[Part]:
        """Take more of the reply and return the parts that are certain."""
        parts: list[Part] = []
        for span in _SPANS.split(text):
            if span in _MARKS:
                parts += self._mark(Mark(span))
            elif span:
                parts += self._text(self._tracker.text(span))
        return parts

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """The parts that were held back. Call once, at the end. `is_cut`: the reply reached its token limit."""
        parts = self._end_call(is_cut=is_cut)
        return parts if is_cut else [*parts, *self._text(self._tracker.finish())]

    def _mark(self, mark: Mark) -> list[Part]:
        before = self._tracker.section
        self._tracker.mark(mark)
        section = self._tracker.section
        if section is before:
            return []
        if before is not Section.HEADER:
            return self._end_message(before)
        if section is Section.CALL:
            self._call = _Call(self._tracker.called)
        return []

    def _end_message(self, section: Section) -> list[Part]:
        if section is Section.CALL:
            return self._end_call(is_cut=False)
        self._shown = dict.fromkeys(self._shown, True)
        is_tagged, self._is_tagged = self._is_tagged, False
        return [Content(self._tags.end)] if is_tagged and self._tags is not None else []

    def _text(self, text: str) -> list[Part]:
        if not text:
            return []
        match self._tracker.section:
            case Section.CALL:
                assert self._call is not None
                return self._call_parts(self._call, *self._call.text(text))
            case Section.REASONING:
                return self._reasoning(text)
            case _:
                return self._content(text)

    def _reasoning(self, text: str) -> list[Part]:
        if self._tags is None:
            return [Reasoning(self._between(Section.REASONING) + text)]
        begin = "" if self._is_tagged else self._tags.begin
        self._is_tagged = True
        return [Content(begin + text)]

    def _content(self, text: str) -> list[Part]:
        return [Content(self._between(Section.CONTENT) + text)] if text else []

    def _between(self, section: Section) -> str:
        """The separator before the next text of this place."""
        is_other, self._shown[section] = self._shown.get(section, False), False
        return _BETWEEN if is_other else ""

    def _call_parts(self, call: _Call, arguments: str, rest: str) -> list[Part]:
        """The parts for more of a call's arguments, and for text that belongs to none."""
        parts: list[Part] = []
        if arguments and not call.is_announced:
            call.is_announced = True
            self.num_calls += 1
            parts.append(CallBegin(self.num_calls - 1, call.name, self._new_id()))
        parts += [CallArguments(self.num_calls - 1, arguments)] if arguments else []
        return [*parts, *self._content(rest)]

    def _end_call(self, *, is_cut: bool) -> list[Part]:
        call, self._call = self._call, None
        if call is None:
            return []
        self._shown = dict.fromkeys(self._shown, True)
        is_empty = not call.is_announced and not call.is_text and not is_cut
        return self._call_parts(call, "{}", "") if is_empty else []


class _Call:
    """The text of one call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_announced = False
        self.is_text = False
        """Whether it is no JSON object."""
        self._value = JsonValue()
        self._blank = ""
        """White space that is shown if text follows."""

    def text(self, text: str) -> tuple[str, str]:
        """Take more text. Returns more of the arguments, and text that is no part of them."""
        if self.is_text:
            return "", text
        if not self.is_announced:
            bare = text.lstrip()
            self._blank += text[: len(text) - len(bare)]
            if not bare:
                return "", ""
            if not bare.startswith("{"):
                self.is_text, blank = True, self._blank
                return "", blank + bare
            text, self._blank = bare, ""
        own = self._value.take(text)
        rest = text[own:]
        if self._value.is_complete and rest:
            self._blank += rest
            if self._blank.strip():
                self.is_text, rest = True, self._blank
                return text[:own], rest.lstrip()
            rest = ""
        return text[:own], rest
