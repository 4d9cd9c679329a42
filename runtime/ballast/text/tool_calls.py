"""Tool calls in a reply, read as they are written, in the two forms of the DeepSeek family.

    V2.5, V3, R1:  CALLS CALL function SEPARATOR name newline ```json newline arguments newline ``` END_CALL … END_CALLS
    V3.1:          CALLS CALL name SEPARATOR arguments END_CALL … END_CALLS

Which one it is shows in what stands before the separator. Words that cannot be read as a call are content, letter by
letter, and so is text between calls. A mark is never text, and a call that is cut before its name is known is dropped.
Arguments are handed on as they are, valid JSON or not; none at all are `{}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto

from ballast.text.marks import Mark
from ballast.text.reply_parts import CallArguments, CallBegin, Content, Part, new_call_id

_NAME = re.compile(r"[\w.:/-]{1,256}", re.ASCII)
_FENCE = re.compile(r"```[ \t]*\w*[ \t]*\n?")


class _Place(Enum):
    BETWEEN = auto()
    """Before, after and between calls."""
    HEAD = auto()
    """Before the separator."""
    NAME = auto()
    """After it, until the name is certain."""
    FENCE = auto()
    """Where the arguments may begin with a line of backticks."""
    ARGUMENTS = auto()
    BROKEN = auto()
    """In what is not a call."""


class ToolCalls:
    """Reads one reply's calls, from a mark that opens them to the one that closes them."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self.num_calls = 0
        self.open = False
        """Whether what comes next is to be read here."""
        self._new_id = new_id
        self._place = _Place.BETWEEN
        self._frame = ""
        """The blanks since a call, words, or the frame's own mark."""
        self._call = ""
        """The call's words so far, until its name is known."""
        self._head = ""
        self._text = ""
        """Of the current place, and not given out yet."""
        self._fenced = False
        self._num_given = 0
        """Characters of the current call's arguments that were given out."""

    def text(self, text: str) -> list[Part]:
        """More text."""
        match self._place:
            case _Place.BETWEEN:
                words = text.rstrip()
                parts = self._lose(words) if words else []
                self._frame += text[len(words) :]
                return parts
            case _Place.BROKEN:
                return [Content(text)]
            case _Place.HEAD:
                self._call += text
                self._head += text
                return []
            case _Place.NAME:
                self._call += text
                self._text += text
                return self._find_name()
            case _Place.FENCE:
                self._text += text
                return self._find_fence()
            case _Place.ARGUMENTS:
                self._text += text
                return self._arguments()

    def mark(self, mark: Mark) -> list[Part]:
        """The next mark; the first one has to be CALLS or CALL."""
        if not self.open:
            self.open, self._place, self._frame = True, _Place.BETWEEN, ""
        match mark:
            case Mark.CALLS:
                return self._end_frame()
            case Mark.CALL:
                parts = self._end_call()
                self._place, self._call, self._head, self._text = _Place.HEAD, "", "", ""
                return parts
            case Mark.END_CALLS:
                self.open = False
                return self._end_frame()
            case Mark.END_CALL if self._place is not _Place.BETWEEN:
                return self._end_call()
            case Mark.SEPARATOR if self._place is _Place.HEAD:
                self._place = _Place.NAME
                return []
            case _ if self._place in (_Place.HEAD, _Place.NAME):
                return self._break()
            case _:
                return []

    def finish(self) -> list[Part]:
        """The reply has ended, in whatever place."""
        if not self.open:
            return []
        self.open = False
        if self._place in (_Place.FENCE, _Place.ARGUMENTS):
            return self._last_arguments()
        return []

    def _end_frame(self) -> list[Part]:
        parts, self._frame = self._end_call(), ""
        return parts

    def _lose(self, text: str) -> list[Part]:
        """`text` is no part of a call, nor are the blanks before it."""
        text, self._frame = self._frame + text, ""
        return [Content(text)] if text.strip() else []

    def _break(self) -> list[Part]:
        self._place = _Place.BROKEN
        return self._lose(self._call)

    def _end_call(self) -> list[Part]:
        """The call ends by its own mark, or because something else begins."""
        parts: list[Part] = []
        if self._place is _Place.NAME:
            parts = self._begin_call(self._text.strip() or self._head.strip(), rest="", place=_Place.ARGUMENTS)
        elif self._place is _Place.HEAD:
            parts = self._break()
        if self._place in (_Place.FENCE, _Place.ARGUMENTS):
            parts += self._last_arguments() or ([] if self._num_given else self._give("{}"))
        self._place, self._text = _Place.BETWEEN, ""
        return parts

    def _find_name(self) -> list[Part]:
        text = self._text.lstrip()
        if not text:
            return []
        head = self._head.strip()
        if head not in ("", "function") or text.startswith("{"):
            return self._begin_call(head, rest=text, place=_Place.ARGUMENTS)
        name, line_end, rest = text.partition("\n")
        return self._begin_call(name.strip(), rest=rest, place=_Place.FENCE) if line_end else []

    def _begin_call(self, name: str, *, rest: str, place: _Place) -> list[Part]:
        if not _NAME.fullmatch(name):
            return self._break()
        begin = CallBegin(self.num_calls, name, self._new_id())
        self.num_calls += 1
        self._frame, self._fenced, self._num_given = "", False, 0
        self._place, self._text = place, rest
        return [begin, *(self._find_fence() if place is _Place.FENCE else self._arguments())]

    def _find_fence(self) -> list[Part]:
        text = self._text.lstrip()
        fence = _FENCE.match(text)
        if "```".startswith(text[:3]) and len(text) < 3:
            return []
        if fence and fence.end() == len(text) and not text.endswith("\n"):
            return []  # the word after the backticks may go on
        self._fenced = fence is not None
        self._text = text[fence.end() :] if fence else text
        self._place = _Place.ARGUMENTS
        return self._arguments()

    def _arguments(self) -> list[Part]:
        """Give out all but blanks at the end and what may be the closing fence."""
        end = _before_fence(self._text) if self._fenced else len(self._text.rstrip())
        certain, self._text = self._text[:end], self._text[end:]
        return self._give(certain)

    def _last_arguments(self) -> list[Part]:
        if self._place is _Place.FENCE and (fence := _FENCE.match(self._text.lstrip())):
            self._text = self._text.lstrip()[fence.end() :]
        rest, self._text = self._text.rstrip(), ""
        if self._fenced:
            rest = rest.removesuffix("```").rstrip() if rest.endswith("```") else rest
        return self._give(rest)

    def _give(self, text: str) -> list[Part]:
        self._num_given += len(text)
        return [CallArguments(self.num_calls - 1, text)] if text else []


def _before_fence(text: str) -> int:
    """Where a last line of up to three backticks, with the blanks around it, begins."""
    body = text.rstrip()
    bare = body.rstrip("`")
    return len(body[: -min(3, len(body) - len(bare))].rstrip()) if bare != body else len(body)
