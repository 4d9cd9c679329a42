"""A grammar for the last message of a reply on channels, which a reasoning message may precede."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ballast.families.family import FINAL_CHANNEL, REASONING_CHANNEL
from ballast.families.marks import Mark
from ballast.grammar.constraint import Grammar, GrammarState
from ballast.grammar.token_rules import bits_of
from ballast.text.marks import Start, ids_of_marks
from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChannelGrammar:
    """Implements the engine's Constraint."""

    grammar: Grammar
    reasoning: tuple[int, ...]
    """The header of a reasoning message that may begin the reply; empty if none may."""
    next_message: tuple[int, ...]
    """The tokens between the reasoning and the header of the next message."""
    banned: NDArray[np.uint8]
    """Mask of the tokens that reasoning may contain."""
    opening: tuple[int, ...] = ()
    """The tokens before the grammar begins."""
    begins_inside: bool = False
    """Whether the reply begins within the reasoning."""

    def start(self) -> ChannelGrammarState:
        """The state before the first generated token."""
        return ChannelGrammarState(self)


@dataclass(slots=True)
class ChannelGrammarState:
    """Implements the engine's ConstraintState."""

    _rule: ChannelGrammar
    _inside: bool = field(init=False)
    """Whether the next token belongs to the reasoning."""
    _reasoning: Sequence[int] = field(init=False)
    """The rest of the reasoning's header; empty once the reply cannot reason any more."""
    _forced: Sequence[int] = field(init=False)
    """Forced tokens before the grammar."""
    _state: GrammarState | None = field(init=False)
    """The grammar's state; None until the reasoning has ended."""

    def __post_init__(self) -> None:
        self._inside = self._rule.begins_inside
        self._reasoning = () if self._inside else self._rule.reasoning
        self._forced = self._rule.opening
        self._state = self._rule.grammar.start()

    def allowed(self) -> NDArray[np.uint8]:
        """The tokens that may come next, as ConstraintState has them. Raises RequestError when the grammar fails."""
        size = self._rule.grammar.vocab_size
        if self._inside:
            return self._rule.banned
        if self._state is None:
            return bits_of(self._reasoning[:1], size)
        mask = bits_of(self._forced[:1], size) if self._forced else self._state.allowed()[: (size + 7) // 8]
        return mask | bits_of(self._reasoning[:1], size) if self._reasoning else mask

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token. Raises RequestError as `allowed` does."""
        if self._inside:
            if token_id == self._rule.next_message[0]:
                self._inside = False
                self._forced = (*self._rule.next_message[1:], *self._rule.opening)
                self._state = self._rule.grammar.start()
            return
        is_reasoning = self._reasoning[:1] == (token_id,)
        self._reasoning = self._reasoning[1:] if is_reasoning else ()
        self._inside = is_reasoning and not self._reasoning
        if self._state is None:
            return
        if self._forced:
            fits = self._forced[0] == token_id
            self._forced = self._forced[1:]
        else:
            fits = not is_reasoning or self._allows(self._state, token_id)
            if fits:
                self._state.accept(token_id)
        if not fits:
            self._state = None

    @staticmethod
    def _allows(state: GrammarState, token_id: int) -> bool:
        return bool(state.allowed()[token_id // 8] >> (token_id % 8) & 1)


def channel_grammar(
    grammar: Grammar, start: Start, tokenizer: Tokenizer, *, may_reason: bool, is_answer: bool
) -> ChannelGrammar | Grammar:
    """The constraint of a reply that begins at `start`, whose last message follows `grammar`: an answer's text, or else
    a message with its header. If the reply continues an answer, the grammar of an answer applies to its rest; any other
    message begins after the end of the answer."""
    is_inside = start is Start.CONTENT
    if is_inside and is_answer:
        return grammar
    ids = ids_of_marks(tokenizer)
    channel, message, end = ids[Mark.CHANNEL], ids[Mark.MESSAGE], ids[Mark.END]
    banned = tokenizer.eos_ids | (set(ids.values()) - {end})
    next_message = (end, ids[Mark.START], *_plain("assistant", tokenizer))
    final = (channel, *_plain(FINAL_CHANNEL, tokenizer), message) if is_answer else ()
    return ChannelGrammar(
        grammar,
        (channel, *_plain(REASONING_CHANNEL, tokenizer), message) if may_reason and not is_inside else (),
        next_message,
        ~bits_of(banned, tokenizer.vocab_size),
        next_message if is_inside else final,
        begins_inside=start is Start.REASONING,
    )


def _plain(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, parse_special=False)
