"""Turns token ids into text incrementally: whole characters only, and nothing that may yet be part of a stop string."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ballast.errors import RequestError
from ballast.families.marks import CLOSES_CALLS, OPENS_CALLS, Mark
from ballast.text.channels.tracker import ChannelTracker, Section
from ballast.text.tokenizer import Tokenizer

_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_MARKS = frozenset(Mark)


@dataclass(frozen=True, slots=True)
class Delta:
    """The text that one push, or the end, makes visible."""

    text: str
    stopped: bool
    """A stop string was completed, now or earlier. Nothing more will come out."""
    num_tokens: int
    """Tokens taken by this push, up to and including the one that completed a stop string."""


class Detokenizer:
    """The text of one token stream. How the stream is cut into pushes makes no difference.

    The first stop string to be completed ends the text; if several are completed by the same character, the longest
    counts. It is cut off unless `keep_stop`. Text that could be the beginning of a stop string is held back until that
    is decided. A stop string does not match inside tool calls, where it would cut the arguments. Time is linear in the
    length of the text. Raises RequestError for an empty stop string.

    `marks` maps tokens to the noncharacters that stand for them in the text; noncharacters in other tokens' text are
    replaced by U+FFFD. `tracker` follows a reply on channels; no stop string matches inside its headers and calls.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        skip_control: bool = True,
        keep_stop: bool = False,
        marks: Mapping[int, str] | None = None,
        tracker: ChannelTracker | None = None,
    ) -> None:
        if "" in stop:
            raise RequestError("a stop string must not be empty", param="stop")
        self._tokenizer = tokenizer
        self._skip_control = skip_control
        self._keep_stop = keep_stop
        self._marks = marks or {}
        self._tracker = tracker
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matchers = [_StopMatcher(text) for text in stop]
        self._held = ""
        self._opened_by: Mark | None = None
        """The mark that opened the tool calls whose text comes now."""
        self._stopped = False
        self.stop: str | None = None
        """The stop string that ended the text."""
        self.num_chars = 0
        """Complete characters so far, shown or held back."""

    @property
    def inside_char(self) -> bool:
        """Whether the last token left a character incomplete."""
        return bool(self._utf8.getstate()[0])

    def push(self, token_ids: Iterable[int]) -> Delta:
        """Take the next tokens. After a stop string they are ignored."""
        text: list[str] = []
        num_tokens = 0
        for token_id in token_ids:
            if self._stopped:
                break
            num_tokens += 1
            text.append(self._release(self._decode(token_id)))
        return Delta("".join(text), self._stopped, num_tokens)

    def finish(self) -> Delta:
        """The text that was held back; an incomplete character becomes U+FFFD. Call once, after the last push."""
        text = ""
        if not self._stopped:
            text = self._release(self._utf8.decode(b"", final=True)) + self._held
            self._held = ""
        return Delta(text, self._stopped, 0)

    def _decode(self, token_id: int) -> str:
        """The characters that the token completes."""
        mark = self._marks.get(token_id)
        if mark is not None:
            unfinished = self._utf8.decode(b"", final=True)
            self._utf8.reset()
            return unfinished + mark
        if self._skip_control and self._tokenizer.is_control(token_id):
            return ""
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        return _NONCHARACTERS.sub("\ufffd", text) if self._marks else text

    def _release(self, text: str) -> str:
        """Take new text and return what is certain to be shown."""
        self.num_chars += len(text)
        if not self._matchers:
            return text
        held_before = len(self._held)
        text = self._held + text
        for at in range(held_before, len(text)):
            if self._is_in_calls(text[at]) if self._tracker is None else self._is_framing(self._tracker, text[at]):
                continue
            complete, self.stop = max((matcher.feed(text[at]), matcher.stop) for matcher in self._matchers)
            if complete:
                self._stopped = True
                self._held = ""
                return text[: at + 1 - (0 if self._keep_stop else complete)]
            self.stop = None
        certain = len(text) - max(matcher.num_matched for matcher in self._matchers)
        self._held = text[certain:]
        return text[:certain]

    def _is_in_calls(self, char: str) -> bool:
        """Whether the next character belongs to tool calls. Before the first one, a stop string that has begun ends."""
        if self._opened_by is not None:
            if char == CLOSES_CALLS.get(self._opened_by):
                self._opened_by = None
            return True
        if char not in OPENS_CALLS:
            return False
        self._opened_by = Mark(char)
        for matcher in self._matchers:
            matcher.num_matched = 0
        return True

    def _is_framing(self, tracker: ChannelTracker, char: str) -> bool:
        """Whether the next character of a reply on channels is a mark, or belongs to a header or a call."""
        if char in _MARKS:
            tracker.mark(Mark(char))
            for matcher in self._matchers:
                matcher.num_matched = 0
            return True
        tracker.text(char)
        return tracker.section in (Section.HEADER, Section.CALL)


class _StopMatcher:
    """Knuth-Morris-Pratt search for one stop string, one character at a time."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self._fallback = _fallbacks(stop)
        self.num_matched = 0
        """Length of the longest prefix of the stop string that is a suffix of the text so far."""

    def feed(self, char: str) -> int:
        """The stop string's length if `char` completes it, else 0."""
        matched = self.num_matched
        while matched and self.stop[matched] != char:
            matched = self._fallback[matched - 1]
        self.num_matched = matched + 1 if self.stop[matched] == char else 0
        return self.num_matched if self.num_matched == len(self.stop) else 0


def _fallbacks(stop: str) -> list[int]:
    """[len(stop)] for each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(stop)
    length = 0
    for at in range(1, len(stop)):
        while length and stop[at] != stop[length]:
            length = table[length - 1]
        if stop[at] == stop[length]:
            length += 1
        table[at] = length
    return table
