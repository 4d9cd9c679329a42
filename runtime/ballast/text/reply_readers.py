"""The readers of one reply, as its layout needs them: its text, its parts, and its number of reasoning tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ballast.text.channels.count import ChannelReasoningCount
from ballast.text.channels.parser import ChannelParser
from ballast.text.channels.tracker import ChannelTracker, Section
from ballast.text.detokenizer import Detokenizer
from ballast.text.marks import ChannelRules, Layout, ReasoningCount, Start
from ballast.text.output_parser import OutputParser
from ballast.text.reply_parts import Part
from ballast.text.tokenizer import Tokenizer

_SECTIONS = {Start.HEADER: Section.HEADER, Start.REASONING: Section.REASONING}


class ReplyParser(Protocol):
    """Divides one reply into its parts while it is generated."""

    @property
    def num_calls(self) -> int:
        """Tool calls so far."""
        ...

    def push(self, text: str) -> list[Part]:
        """Take more of the reply and return the parts that are certain."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """The parts that were held back. `is_cut`: the reply reached its token limit."""
        ...


def parser_of(layout: Layout) -> ReplyParser:
    """The parser of a reply."""
    if layout.channels is None:
        return OutputParser(layout.start, layout.read_calls)
    rules = layout.channels
    return ChannelParser(_section(layout), rules.functions, tags=rules.tags)


def detokenizer_of(
    layout: Layout, tokenizer: Tokenizer, stop: Sequence[str], *, skip_control: bool, keep_stop: bool
) -> Detokenizer:
    """What makes the text of a reply."""
    tracker = None if layout.channels is None else _tracker(layout, layout.channels)
    return Detokenizer(
        tokenizer, stop, skip_control=skip_control, keep_stop=keep_stop, marks=layout.marks, tracker=tracker
    )


def reasoning_count_of(layout: Layout, tokenizer: Tokenizer) -> ReasoningCount | ChannelReasoningCount:
    """What counts the reasoning tokens of a reply."""
    if layout.channels is None:
        return ReasoningCount(tokenizer, layout)
    return ChannelReasoningCount(tokenizer, layout.marks, _tracker(layout, layout.channels))


def _tracker(layout: Layout, rules: ChannelRules) -> ChannelTracker:
    return ChannelTracker(_section(layout), rules.functions)


def _section(layout: Layout) -> Section:
    return _SECTIONS.get(layout.start, Section.CONTENT)
