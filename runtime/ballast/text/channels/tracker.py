"""Follows a reply whose messages are on channels (the harmony format), and says where each text belongs.

    header MESSAGE text END START assistant header MESSAGE text …

A header is `CHANNEL name`, for calls with ` to=functions.NAME` before CHANNEL or after the name, and perhaps with
` CONSTRAIN json`. The reply begins in a header, since the prompt ends with the role. The tokens that end the reply end
its last message.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum

from ballast.families.family import REASONING_CHANNEL
from ballast.families.marks import Mark
from ballast.text.calls.reader import NAME

_ASSISTANT, _TO = "assistant", "to="
_FUNCTIONS = "functions."
LONGEST_HEADER = 1024
"""Characters of a header, beyond which it is the text of an answer."""
_ANY_MARK = re.compile(f"[{''.join(Mark)}]")
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S*)")
_CHANNEL_NAME = re.compile(rf"{Mark.CHANNEL}\s*([A-Za-z_]+)")
_ROLE_SO_FAR = re.compile(r"\s*(?:assistant(?:\s|\Z))?\s*(?:to=\S*\s*)?\Z")
_WORD_BEGUN = re.compile(r"\s*(assistant\s+)?([a-z=]*)\Z")


class Section(Enum):
    """The part of the reply that a text belongs to."""

    HEADER = "header"
    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"


class ChannelTracker:
    """The place in one reply. How its text is cut into pieces makes no difference.

    Missing marks are tolerated: a header may directly follow a text, and a reply without a header is an answer. A
    header that names several channels counts as the last of them."""

    def __init__(self, section: Section = Section.HEADER, functions: Collection[str] | None = None) -> None:
        """`functions`: the declared ones; None: calls are not read, and their texts are part of the answer."""
        self.section = section
        self.called = ""
        """The name of the function, in a call."""
        self.header = ""
        """The header so far, with its marks."""
        self._functions = functions

    def mark(self, mark: Mark) -> None:
        """Take the next mark. Of the marks within a text, CONSTRAIN and MESSAGE mean nothing."""
        match mark:
            case Mark.MESSAGE if self.section is Section.HEADER:
                self.section = self._section_of(self.header)
                self.header = ""
            case Mark.END | Mark.START:
                self.section, self.header = Section.HEADER, ""
            case Mark.CHANNEL:
                self.header = (self.header if self.section is Section.HEADER else "") + mark
                self.section = Section.HEADER
            case Mark.CONSTRAIN if self.section is Section.HEADER:
                self.header += mark

    def text(self, text: str) -> str:
        """Take more text, without marks. Returns the text that belongs to `section`: none in a header, and the whole
        header if it turns out to be no header."""
        if self.section is not Section.HEADER:
            return text
        self.header += text
        if len(self.header) <= LONGEST_HEADER and may_be_header(self.header):
            return ""
        shown, self.header = _ANY_MARK.sub("", self.header), ""
        self.section = Section.CONTENT
        return shown

    def finish(self) -> str:
        """The reply has ended. Returns the text of a header that is a call without a message, or an answer of one
        word."""
        spaced, text = _ANY_MARK.sub(" ", self.header), _ANY_MARK.sub("", self.header).strip()
        is_word = not _ANY_MARK.search(self.header) and text != _ASSISTANT
        if self.section is not Section.HEADER or not (is_word or _RECIPIENT.search(spaced)):
            return ""
        self.section, self.header = Section.CONTENT, ""
        return text

    def _section_of(self, header: str) -> Section:
        channels = _CHANNEL_NAME.findall(header)
        is_reasoning = bool(channels) and channels[-1] == REASONING_CHANNEL
        recipient = _RECIPIENT.search(_ANY_MARK.sub(" ", header))
        name = None if recipient is None else self._function(recipient[1])
        if name is not None:
            self.called = name
            return Section.CALL
        return Section.REASONING if is_reasoning else Section.CONTENT

    def _function(self, recipient: str) -> str | None:
        """The function that is called; None if it is none. Models also call declared functions without the prefix."""
        if self._functions is None:
            return None
        name = recipient.removeprefix(_FUNCTIONS)
        is_function = recipient.startswith(_FUNCTIONS) or name in self._functions
        return name if is_function and NAME.fullmatch(name) else None


def may_be_header(header: str) -> bool:
    """Whether text after a role or after START may still become a header: before its first mark, only `assistant` and a
    recipient are allowed."""
    before = _ANY_MARK.split(header, maxsplit=1)
    if len(before) > 1 or _ROLE_SO_FAR.match(header):
        return True
    begun = _WORD_BEGUN.match(header)
    return begun is not None and any(word.startswith(begun[2]) for word in ((_TO,) if begun[1] else (_ASSISTANT, _TO)))
