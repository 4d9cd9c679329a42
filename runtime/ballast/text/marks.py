"""The tokens that divide a reply into reasoning, content and tool calls, and the marks that stand for them in text.

Only the token itself counts; a model that spells `</think>` letter by letter is writing about it. The detokenizer turns
each such token into a Unicode noncharacter, its mark, which no text contains. So text and structure travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from ballast.text.tokenizer import Tokenizer


class Mark(StrEnum):
    """One noncharacter for each token."""

    THINK = "\ufde0"
    END_THINK = "\ufde1"
    CALLS = "\ufde2"
    END_CALLS = "\ufde3"
    CALL = "\ufde4"
    END_CALL = "\ufde5"
    SEPARATOR = "\ufde6"

    @property
    def spelling(self) -> str:
        """How the vocabulary writes the token."""
        return _SPELLINGS[self]


_SPELLINGS = {
    Mark.THINK: "<think>",
    Mark.END_THINK: "</think>",
    Mark.CALLS: "<｜tool▁calls▁begin｜>",
    Mark.END_CALLS: "<｜tool▁calls▁end｜>",
    Mark.CALL: "<｜tool▁call▁begin｜>",
    Mark.END_CALL: "<｜tool▁call▁end｜>",
    Mark.SEPARATOR: "<｜tool▁sep｜>",
}

THINKING = frozenset({Mark.THINK, Mark.END_THINK})
CALLING = frozenset(_SPELLINGS) - THINKING
_ENDS_REASONING = frozenset({Mark.END_THINK, Mark.CALLS, Mark.CALL})


class Start(Enum):
    """What a reply begins with."""

    REASONING = "reasoning"
    CONTENT = "content"
    EITHER = "either"
    """Content, unless the reply begins with <think>."""
    EITHER_REASONING = "either, reasoning first"
    """Reasoning, whether or not the reply begins with <think>."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one request's replies are divided. The default: not at all."""

    marks: Mapping[int, Mark] = field(default_factory=dict)
    start: Start = Start.CONTENT


def marks_of(tokenizer: Tokenizer, kinds: Iterable[Mark]) -> dict[int, Mark]:
    """Token id → mark for all `kinds`; empty unless the vocabulary has every one of them."""
    ids = {tokenizer.id_of(mark.spelling): mark for mark in kinds}
    return {} if None in ids else {token_id: mark for token_id, mark in ids.items() if token_id is not None}


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


class ReasoningCount:
    """Counts the reasoning tokens of one reply, without the tags."""

    def __init__(self, tokenizer: Tokenizer, layout: Layout) -> None:
        self._tokenizer = tokenizer
        self._marks = layout.marks
        self._start = layout.start
        self._blank = 0
        self.num_tokens = 0

    def take(self, token_id: int) -> bool:
        """Count the reply's next token, and return whether it belongs to the reasoning. The tags do. Blank tokens
        before the first tag or word are assigned to what most likely follows."""
        before = self._start
        mark = self._marks.get(token_id)
        if mark is Mark.THINK and before is not Start.CONTENT:
            self._start = Start.REASONING
        elif mark in _ENDS_REASONING:
            self._start = Start.CONTENT
            return mark is Mark.END_THINK and before is not Start.CONTENT
        elif mark is None and before in (Start.EITHER, Start.EITHER_REASONING):
            self._blank += 1
            if self._tokenizer.token_bytes(token_id).strip():
                is_reasoning = before is Start.EITHER_REASONING
                self._start = Start.REASONING if is_reasoning else Start.CONTENT
                self.num_tokens += self._blank if is_reasoning else 0
        elif mark is None and before is Start.REASONING:
            self.num_tokens += 1
        return self._start in (Start.REASONING, Start.EITHER_REASONING)
