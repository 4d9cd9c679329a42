"""The interface of parsers for the tool calls of a reply, and the code that all formats share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from ballast.families.marks import Mark
from ballast.text.reply_parts import CallArguments, CallBegin, Content, Part, new_call_id

NAME = re.compile(r"[\w.:/-]{1,256}", re.ASCII)
"""What may be a function's name."""

NewId = Callable[[], str]


class CallReader(Protocol):
    """Reads one reply's calls, from a mark that opens them to the mark that closes them."""

    num_calls: int
    open: bool
    """Whether the next input belongs here."""
    is_framed: bool
    """Whether text that `unopened_at` holds back is part of calls that a later mark opens; otherwise it is a call
    without its opening mark, or no part of a call."""

    def unopened_at(self, text: str) -> int:
        """The index in text outside calls from which it may belong to a call: one that a later mark opens, or one whose
        opening mark is missing. The length of the text if it cannot."""
        ...

    def is_unopened_call(self, text: str, *, is_closed: bool) -> bool:
        """Whether text that `unopened_at` held back is a call without its opening mark. `is_closed`: END_CALL follows;
        otherwise the end of the reply does."""
        ...

    def text(self, text: str) -> list[Part]:
        """Take more text."""
        ...

    def mark(self, mark: Mark) -> list[Part]:
        """Take the next mark. The first must be CALLS, CALL or TAG."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """The reply has ended, in any state. `is_cut`: it reached its token limit. Then incomplete tags and the head of
        a call whose name is not complete are dropped, and a call that has no end stays without the end of its JSON."""
        ...


ReadCalls = Callable[[NewId], CallReader]
"""Makes the reader of a reply."""


class BracketedCalls(ABC):
    """Calls between CALL and END_CALL, one after another; CALLS and END_CALLS may stand around all of them.

    Text between calls is content, but for white space. Text that cannot be read as a call becomes content, unchanged.
    Marks are never shown. What there is of a call that ends with the reply before its name is known is such text.
    """

    def __init__(self, new_id: NewId = new_call_id) -> None:
        self.num_calls = 0
        self.open = False
        self.is_framed = False
        self._new_id = new_id
        self._is_inside = False
        self._held = ""
        """Text after the last call that may be a call without its opening mark."""
        self._blank = ""
        """White space since the last call or text."""

    def unopened_at(self, text: str) -> int:
        """See `CallReader`."""
        return len(text)

    def is_unopened_call(self, text: str, *, is_closed: bool) -> bool:
        """See `CallReader`."""
        return False

    def text(self, text: str) -> list[Part]:
        """See `CallReader`."""
        if self._is_inside:
            return self._inner_text(text)
        text = self._held + text
        begin = self.unopened_at(text)
        self._held = text[begin:]
        return self._between(text[:begin])

    def mark(self, mark: Mark) -> list[Part]:
        """See `CallReader`."""
        if not self.open:
            self.open, self._held, self._blank = True, "", ""
        if mark is Mark.CALL:
            parts = self._ended()
            self._is_inside = True
            self._begin()
            return parts
        if mark in (Mark.END_CALL, Mark.END_CALLS):
            return [*self._begin_unopened(is_closed=True), *self._ended()]
        return self._inner_mark(mark) if self._is_inside else []

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """See `CallReader`."""
        if not self.open:
            return []
        self.open = False
        parts = [*self._begin_unopened(is_closed=False), *self._release()]
        return [*parts, *self._end_early(is_cut=is_cut)] if self._is_inside else parts

    def _begin_unopened(self, *, is_closed: bool) -> list[Part]:
        if not self.is_unopened_call(self._held, is_closed=is_closed):
            return []
        self._is_inside, held, self._held = True, self._held, ""
        self._begin()
        return self._inner_text(held)

    def _ended(self) -> list[Part]:
        """The call ends, by its own mark or because another begins."""
        parts = self._release()
        if not self._is_inside:
            return parts
        self._is_inside = False
        return [*parts, *self._end()]

    def _release(self) -> list[Part]:
        held, self._held = self._held, ""
        return self._between(held)

    def _between(self, text: str) -> list[Part]:
        words = text.rstrip()
        parts = self._as_content(words) if words else []
        self._blank += text[len(words) :]
        return parts

    def _as_content(self, text: str) -> list[Part]:
        """`text`, with the white space before it, as content."""
        text, self._blank = self._blank + text, ""
        return [Content(text)] if text.strip() else []

    def _announced(self, name: str) -> Part:
        self._blank = ""
        self.num_calls += 1
        return CallBegin(self.num_calls - 1, name, self._new_id())

    def _arguments(self, text: str) -> list[Part]:
        return [CallArguments(self.num_calls - 1, text)] if text else []

    @abstractmethod
    def _begin(self) -> None:
        """A call begins."""

    @abstractmethod
    def _inner_text(self, text: str) -> list[Part]:
        """More text of the call."""

    @abstractmethod
    def _inner_mark(self, mark: Mark) -> list[Part]:
        """A mark within the call."""

    @abstractmethod
    def _end(self) -> list[Part]:
        """The call is complete."""

    @abstractmethod
    def _end_early(self, *, is_cut: bool) -> list[Part]:
        """The reply has ended within the call. `is_cut` as `CallReader.finish` has it."""
