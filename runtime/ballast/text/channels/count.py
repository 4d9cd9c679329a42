"""Says which tokens of a reply on channels belong to the reasoning, and counts them."""

from __future__ import annotations

from collections.abc import Mapping

from ballast.families.marks import Mark
from ballast.text.channels.tracker import ChannelTracker, Section
from ballast.text.tokenizer import Tokenizer


class ChannelReasoningCount:
    """As `ReasoningCount`. The header and the end of a message belong to what the message is; the count is without
    them."""

    def __init__(self, tokenizer: Tokenizer, marks: Mapping[int, Mark], tracker: ChannelTracker) -> None:
        self._tokenizer = tokenizer
        self._marks = marks
        self._tracker = tracker
        self._num_held = 0
        """Tokens of the header so far."""
        self.num_tokens = 0

    def take(self, token_id: int) -> list[bool]:
        """Take the next token. Returns whether it belongs to the reasoning, after the same for the tokens of a header
        before it; nothing while that is not decided."""
        mark = self._marks.get(token_id)
        if mark is None:
            self._tracker.text(self._tokenizer.token_bytes(token_id).decode("utf-8", errors="replace"))
            self.num_tokens += self._tracker.section is Section.REASONING
            return self._held_and_next()
        before = self._tracker.section
        self._tracker.mark(mark)
        if mark is Mark.END and before is not Section.HEADER:
            return [before is Section.REASONING]
        return self._held_and_next()

    def finish(self) -> list[bool]:
        """The reply has ended: whether tokens that are not decided yet belong to the reasoning."""
        num_held, self._num_held = self._num_held, 0
        return [False] * num_held

    def _held_and_next(self) -> list[bool]:
        if self._tracker.section is Section.HEADER:
            self._num_held += 1
            return []
        num_held, self._num_held = self._num_held, 0
        return [self._tracker.section is Section.REASONING] * (num_held + 1)
