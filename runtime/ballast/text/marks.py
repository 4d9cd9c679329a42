"""The tokens that divide a reply into reasoning, content and tool calls, and the marks that stand for them in text.

Only the token itself counts; a model that spells `</think>` letter by letter is writing about it. The detokenizer turns
each such token into a Unicode noncharacter, its mark, which no text contains. So text and structure travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ballast.families.family import REASONING_CHANNEL
from ballast.families.marks import THINKING, Mark
from ballast.text.calls.reader import ReadCalls
from ballast.text.calls.separated import SeparatedCalls
from ballast.text.think_tags import ThinkTags
from ballast.text.tokenizer import Tokenizer

_ENDS_REASONING = frozenset({Mark.END_THINK, Mark.CALLS, Mark.CALL, Mark.TAG})


class Start(Enum):
    """What a reply begins with."""

    REASONING = "reasoning"
    CONTENT = "content"
    EITHER = "either"
    """Content, unless the reply begins with <think>."""
    EITHER_REASONING = "either, reasoning first"
    """Reasoning, whether or not the reply begins with <think>."""
    HEADER = "header"
    """The header of a message, whose channel decides."""


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """How one request's replies on channels are read."""

    functions: frozenset[str] | None = None
    """Names of the declared functions; None: calls are not read."""
    tags: ThinkTags | None = None
    """Set if the reasoning stays in the content, between these."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one request's replies are divided. The default: not at all."""

    marks: Mapping[int, Mark] = field(default_factory=dict)
    start: Start = Start.CONTENT
    read_calls: ReadCalls = SeparatedCalls
    channels: ChannelRules | None = None
    """Set if the messages of a reply are on channels; `read_calls` is not used then."""


def marks_of(tokenizer: Tokenizer, spellings: Mapping[Mark, str]) -> dict[int, Mark]:
    """Token id → mark for all of `spellings`; empty unless the vocabulary has every one of them."""
    ids = {tokenizer.id_of(text): mark for mark, text in spellings.items()}
    return {} if None in ids else {token_id: mark for token_id, mark in ids.items() if token_id is not None}


def ids_of_marks(tokenizer: Tokenizer) -> dict[Mark, int]:
    """Mark → token id for all marks of replies; empty unless the vocabulary has every one of them."""
    return {mark: token_id for token_id, mark in marks_of(tokenizer, tokenizer.reply.spellings).items()}


def start_of(prompt_ids: Iterable[int], marks: Mapping[int, Mark], ends: frozenset[int], *, thinks: bool) -> Start:
    """What a reply to the prompt begins with.

    `prompt_ids` are in reverse order, from the prompt's end. `ends` are the tokens that end a turn. `thinks`: without a
    tag, this model's replies begin with reasoning.
    """
    if not THINKING.intersection(marks.values()):
        return Start.CONTENT
    for token_id in prompt_ids:
        match marks.get(token_id):
            case Mark.THINK:
                return Start.REASONING
            case Mark.END_THINK:
                return Start.CONTENT
        if token_id in ends:
            break
    return Start.EITHER_REASONING if thinks else Start.EITHER


def channel_start(prompt_ids: Iterable[int], marks: Mapping[int, Mark], tokenizer: Tokenizer) -> Start:
    """As `start_of`, if the messages are on channels: inside a message that the prompt leaves open, or in a header."""
    header: list[int] = []
    is_open = False
    for token_id in prompt_ids:
        match marks.get(token_id):
            case Mark.MESSAGE:
                is_open, header = True, []
            case Mark.CHANNEL if is_open:
                name = tokenizer.decode(reversed(header)).split()[:1]
                return Start.REASONING if name == [REASONING_CHANNEL] else Start.CONTENT
            case Mark.START | Mark.END:
                break
            case None:
                header.append(token_id)
    return Start.CONTENT if is_open else Start.HEADER


class ReasoningCount:
    """Says which tokens of one reply belong to the reasoning, as `OutputParser` divides its text, and counts them.

    The tags belong to it, and so do the line breaks after it, which no content shows. The count is without them.
    """

    def __init__(self, tokenizer: Tokenizer, layout: Layout) -> None:
        self._tokenizer = tokenizer
        self._marks = layout.marks
        self._start = layout.start
        self._num_blank = 0
        """Blank tokens at the reply's beginning. What follows decides what they belong to."""
        self._at_edge = False
        """Whether content that follows reasoning has not begun yet."""
        self.num_tokens = 0

    def take(self, token_id: int) -> list[bool]:
        """Take the next token. Returns whether it belongs to the reasoning, after the same for the blank tokens before
        it; nothing while that is not decided."""
        match self._marks.get(token_id):
            case None:
                return self._text(self._tokenizer.token_bytes(token_id))
            case Mark.THINK:
                if self._start is not Start.CONTENT:
                    self._start = Start.REASONING
                return [*self._blanks(is_reasoning=True), True]
            case Mark.END_THINK:
                self._at_edge = self._at_edge or self._start is not Start.CONTENT
                self._start = Start.CONTENT
                return [*self._blanks(is_reasoning=True), True]
            case mark if mark in _ENDS_REASONING:
                self._start, self._at_edge = Start.CONTENT, False
                return [*self._blanks(is_reasoning=False), False]
            case _:  # part of a call, or a mark that means nothing here
                if self._is_undecided:
                    self._num_blank += 1
                    return []
                return [self._start is Start.REASONING]

    def finish(self) -> list[bool]:
        """The reply has ended: whether blank tokens that are not decided yet belong to the reasoning."""
        return self._blanks(is_reasoning=self._start is Start.EITHER_REASONING)

    @property
    def _is_undecided(self) -> bool:
        return self._start in (Start.EITHER, Start.EITHER_REASONING)

    def _text(self, spelled: bytes) -> list[bool]:
        if self._is_undecided:
            if not spelled.strip():
                self._num_blank += 1
                return []
            is_reasoning = self._start is Start.EITHER_REASONING
            self._start = Start.REASONING if is_reasoning else Start.CONTENT
            self.num_tokens += self._num_blank + 1 if is_reasoning else 0
            return [*self._blanks(is_reasoning=is_reasoning), is_reasoning]
        if self._start is Start.REASONING:
            self.num_tokens += 1
            return [True]
        self._at_edge = self._at_edge and not spelled.strip(b"\n")
        return [self._at_edge]

    def _blanks(self, *, is_reasoning: bool) -> list[bool]:
        num_blank, self._num_blank = self._num_blank, 0
        return [is_reasoning] * num_blank
