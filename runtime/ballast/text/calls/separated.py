"""Reads calls with a mark between the name and what follows, as DeepSeek and Kimi write them.

    V2.5, V3, R1:  CALLS CALL function SEPARATOR name newline ```json newline arguments newline ``` END_CALL … END_CALLS
    V3.1:          CALLS CALL name SEPARATOR arguments END_CALL … END_CALLS
    Kimi:          CALLS CALL functions.name:N SEPARATOR arguments END_CALL … END_CALLS

Kimi may spell the marks around all calls, with `call` for `calls`. Such a tag is no content next to a call.

The text before the separator tells the forms apart. Text that cannot be parsed as a call becomes content, unchanged,
so do text between calls and what there is of a call that ends with the reply before its name is known. Marks are never
shown. Arguments are passed on unchanged, valid JSON or not; missing ones become `{}`.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from ballast.families.marks import Mark
from ballast.text.calls.reader import NAME, NewId
from ballast.text.calls.tags import beginnings
from ballast.text.reply_parts import CallArguments, CallBegin, Content, Part, new_call_id

_NUMBERED = re.compile(r"(functions\.)?([\w-]{1,128})(:\d{1,9})?", re.ASCII)
"""A call that the model numbers itself. The whole is its id, which later prompts hold. Models forget either end of it;
no function's own name has one."""
_SPELLED = re.compile(r"<\|tool_calls?_section_(?:begin|end)\|>")
_SPELLED_SO_FAR = re.compile(
    r"(?:<\|tool_calls?_section_begin\|>\s{0,20}|<\|tool_calls?_section_[a-z]{0,5}\|?|"
    rf"{beginnings('<|tool_calls_section_', 1)}|{beginnings('<|tool_call_section_', 1)})\Z"
)
_FENCE = re.compile(r"```[ \t]*\w*[ \t]*\n?")


class _State(Enum):
    BETWEEN = auto()
    """Before, after and between calls."""
    HEAD = auto()
    """In a call, before the separator."""
    NAME = auto()
    """After the separator, until the name is certain."""
    FENCE = auto()
    """Where a code fence may precede the arguments."""
    ARGUMENTS = auto()
    BROKEN = auto()
    """In text between call marks that is not a call."""


class SeparatedCalls:
    """The parser of one reply's calls, from a mark that opens them to the mark that closes them."""

    def __init__(self, new_id: NewId = new_call_id) -> None:
        self.num_calls = 0
        self.open = False
        """Whether the next input belongs here."""
        self.is_framed = True
        self._new_id = new_id
        self._state = _State.BETWEEN
        self._frame = ""
        """White space and the beginning of a spelled mark, since the last call, text or mark of the frame."""
        self._numbered: set[str] = set()
        """Ids that the model gave to calls of this reply."""
        self._call = ""
        """The call's text so far, until its name is known."""
        self._head = ""
        self._text = ""
        """Text of the current state that is not emitted yet."""
        self._fenced = False
        self._num_emitted = 0
        """Characters of the current call's arguments that were emitted."""

    def unopened_at(self, text: str) -> int:
        """See `CallReader`."""
        found = _SPELLED_SO_FAR.search(text)
        return len(text) if found is None else found.start()

    def is_unopened_call(self, text: str, *, is_closed: bool) -> bool:
        """See `CallReader`."""
        return False

    def text(self, text: str) -> list[Part]:
        """Take more text."""
        match self._state:
            case _State.BETWEEN:
                return self._between(_SPELLED.sub("", self._frame + text))
            case _State.BROKEN:
                return [Content(text)]
            case _State.HEAD:
                self._call += text
                self._head += text
                return []
            case _State.NAME:
                self._call += text
                self._text += text
                return self._find_name()
            case _State.FENCE:
                self._text += text
                return self._find_fence()
            case _State.ARGUMENTS:
                self._text += text
                return self._arguments()

    def mark(self, mark: Mark) -> list[Part]:
        """Take the next mark. The first must be CALLS or CALL."""
        if not self.open:
            self.open, self._state, self._frame = True, _State.BETWEEN, ""
        match mark:
            case Mark.CALLS:
                return self._end_frame()
            case Mark.CALL:
                parts = self._end_call()
                self._state, self._call, self._head, self._text = _State.HEAD, "", "", ""
                return parts
            case Mark.END_CALLS:
                self.open = False
                return self._end_frame()
            case Mark.END_CALL if self._state is not _State.BETWEEN:
                return self._end_call()
            case Mark.SEPARATOR if self._state is _State.HEAD:
                self._state = _State.NAME
                return []
            case _ if self._state in (_State.HEAD, _State.NAME):
                return self._reject_call()
            case _:
                return []

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """See `CallReader`."""
        if not self.open:
            return []
        self.open = False
        match self._state:
            case _State.FENCE | _State.ARGUMENTS if not is_cut:
                return self._last_arguments()
            case _State.HEAD | _State.NAME if not is_cut:
                return self._as_content(self._call)
            case _State.BETWEEN if not is_cut and self._frame.strip():
                return self._as_content("")
            case _:
                return []

    def _between(self, text: str) -> list[Part]:
        """Text between calls is content up to white space and what may become a spelled mark."""
        shown = text[: self.unopened_at(text)].rstrip()
        self._frame = text[len(shown) :]
        return [Content(shown)] if shown else []

    def _end_frame(self) -> list[Part]:
        parts = [] if self._state is not _State.BETWEEN or not self._frame.strip() else self._as_content("")
        parts, self._frame = [*parts, *self._end_call()], ""
        return parts

    def _as_content(self, text: str) -> list[Part]:
        """`text`, with the white space before it, as content, since it is no part of a call."""
        text, self._frame = self._frame + text, ""
        return [Content(text)] if text.strip() else []

    def _reject_call(self) -> list[Part]:
        self._state = _State.BROKEN
        return self._as_content(self._call)

    def _end_call(self) -> list[Part]:
        """The call ends, by its own mark or because something else begins."""
        parts: list[Part] = []
        if self._state is _State.NAME:
            parts = self._begin_call(self._text.strip() or self._head.strip(), rest="", state=_State.ARGUMENTS)
        elif self._state is _State.HEAD:
            parts = self._reject_call()
        if self._state in (_State.FENCE, _State.ARGUMENTS):
            parts += self._last_arguments() or ([] if self._num_emitted else self._emit("{}"))
        self._state, self._text = _State.BETWEEN, ""
        return parts

    def _find_name(self) -> list[Part]:
        text = self._text.lstrip()
        if not text:
            return []
        head = self._head.strip()
        if head not in ("", "function") or text.startswith("{"):
            return self._begin_call(head, rest=text, state=_State.ARGUMENTS)
        name, line_end, rest = text.partition("\n")
        return self._begin_call(name.strip(), rest=rest, state=_State.FENCE) if line_end else []

    def _begin_call(self, name: str, *, rest: str, state: _State) -> list[Part]:
        if not NAME.fullmatch(name):
            return self._reject_call()
        call_id, numbered = self._new_id(), _NUMBERED.fullmatch(name)
        if numbered is not None:
            if all(numbered.groups()) and name not in self._numbered:
                call_id = name
                self._numbered.add(name)
            name = numbered[2]
        begin = CallBegin(self.num_calls, name, call_id)
        self.num_calls += 1
        self._frame, self._fenced, self._num_emitted = "", False, 0
        self._state, self._text = state, rest
        return [begin, *(self._find_fence() if state is _State.FENCE else self._arguments())]

    def _find_fence(self) -> list[Part]:
        text = self._text.lstrip()
        fence = _FENCE.match(text)
        if "```".startswith(text[:3]) and len(text) < 3:
            return []
        if fence and fence.end() == len(text) and not text.endswith("\n"):
            return []  # the word after the backticks may be incomplete
        self._fenced = fence is not None
        self._text = text[fence.end() :] if fence else text
        self._state = _State.ARGUMENTS
        return self._arguments()

    def _arguments(self) -> list[Part]:
        """Emit everything but white space at the end and what may be the closing fence."""
        end = _before_fence(self._text) if self._fenced else len(self._text.rstrip())
        certain, self._text = self._text[:end], self._text[end:]
        return self._emit(certain)

    def _last_arguments(self) -> list[Part]:
        if self._state is _State.FENCE and (fence := _FENCE.match(self._text.lstrip())):
            self._text = self._text.lstrip()[fence.end() :]
        rest, self._text = self._text.rstrip(), ""
        if self._fenced:
            rest = rest.removesuffix("```").rstrip() if rest.endswith("```") else rest
        return self._emit(rest)

    def _emit(self, text: str) -> list[Part]:
        self._num_emitted += len(text)
        return [CallArguments(self.num_calls - 1, text)] if text else []


def _before_fence(text: str) -> int:
    """The index at which a last line of up to three backticks begins, with the white space around it."""
    body = text.rstrip()
    bare = body.rstrip("`")
    return len(body[: -min(3, len(body) - len(bare))].rstrip()) if bare != body else len(body)
