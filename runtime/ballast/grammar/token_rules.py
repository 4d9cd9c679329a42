"""A request's rules for the tokens of its reply: allowed tokens, forbidden words, and the limit of reasoning.

Each is a Constraint of the engine. Several constraints and a grammar can be combined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ballast.engine.sampling.constraint import Constraint, ConstraintState, Mask
from ballast.errors import RequestError

Bits = NDArray[np.uint8]


def bits_of(token_ids: Collection[int], vocab_size: int) -> Bits:
    """A mask [(vocab_size + 7) / 8] that allows these tokens alone."""
    allowed = np.zeros(vocab_size, bool)
    allowed[list(token_ids)] = True
    return np.packbits(allowed, bitorder="little")


@dataclass(frozen=True, slots=True)
class OnlyTokens:
    """Implements Constraint and its state: these tokens and no others, as vLLM's `allowed_token_ids`."""

    mask: Bits

    def start(self) -> OnlyTokens:
        """The state before the first generated token."""
        return self

    def allowed(self) -> Mask:
        """The tokens."""
        return self.mask

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token, which changes nothing."""


@dataclass(frozen=True, slots=True)
class NoWords:
    """Implements Constraint: none of these sequences is completed, as with vLLM's `bad_words`."""

    words: Sequence[tuple[int, ...]]
    """Each of one token or more."""
    vocab_size: int

    def start(self) -> NoWordsState:
        """The state before the first generated token."""
        return NoWordsState(self)


class NoWordsState:
    """Implements ConstraintState."""

    def __init__(self, rule: NoWords) -> None:
        self._words = rule.words
        self._vocab_size = rule.vocab_size
        self._last: deque[int] = deque(maxlen=max(len(word) for word in rule.words))

    def allowed(self) -> Mask:
        """Every token but those that would complete a word."""
        last = tuple(self._last)
        banned = [word[-1] for word in self._words if last[len(last) - len(word) + 1 :] == word[:-1]]
        return ~bits_of(banned, self._vocab_size) if banned else None

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token."""
        self._last.append(token_id)


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """Implements Constraint: reasoning ends after `most` tokens, as with vLLM's `thinking_token_budget`."""

    most: int
    begin_id: int
    end_id: int
    begins_inside: bool
    """Whether the reply begins inside the reasoning, without `begin_id`."""
    vocab_size: int

    def start(self) -> ThinkingBudgetState:
        """The state before the first generated token."""
        return ThinkingBudgetState(self)


class ThinkingBudgetState:
    """Implements ConstraintState."""

    def __init__(self, rule: ThinkingBudget) -> None:
        self._rule = rule
        self._inside = rule.begins_inside
        self._done = False
        self._left = rule.most

    def allowed(self) -> Mask:
        """Every token, or only the one that ends the reasoning."""
        if not self._inside or self._left > 0:
            return None
        return bits_of((self._rule.end_id,), self._rule.vocab_size)

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token."""
        if token_id == self._rule.end_id:
            self._inside, self._done = False, True
        elif token_id == self._rule.begin_id and not self._done:
            self._inside = True
        elif self._inside:
            self._left -= 1


@dataclass(frozen=True, slots=True)
class ChannelThinkingBudget:
    """Implements Constraint: as ThinkingBudget, of all messages of reasoning in a reply on channels."""

    most: int
    header: tuple[int, ...]
    """The tokens before the text of such a message. The second one says that it is one."""
    end_id: int
    begins_inside: bool
    vocab_size: int

    def start(self) -> ChannelThinkingBudgetState:
        """The state before the first generated token."""
        return ChannelThinkingBudgetState(self)


class ChannelThinkingBudgetState:
    """Implements ConstraintState."""

    def __init__(self, rule: ChannelThinkingBudget) -> None:
        self._rule = rule
        self._inside = rule.begins_inside
        self._left = rule.most
        self._last: deque[int] = deque(maxlen=len(rule.header))

    def allowed(self) -> Mask:
        """Every token, or those that do not begin or continue reasoning."""
        if self._left > 0:
            return None
        if self._inside:
            return bits_of((self._rule.end_id,), self._rule.vocab_size)
        channel, named = self._rule.header[:2]
        begins = bool(self._last) and self._last[-1] == channel
        return ~bits_of((named,), self._rule.vocab_size) if begins else None

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token."""
        self._last.append(token_id)
        if self._inside:
            self._inside = token_id != self._rule.end_id
            self._left -= self._inside
        else:
            self._inside = tuple(self._last) == self._rule.header


@dataclass(frozen=True, slots=True)
class AllOf:
    """Implements Constraint: a token is allowed if all `constraints` allow it."""

    constraints: tuple[Constraint, ...]
    fields: tuple[str, ...]
    """The request's fields, for the error if no token is allowed."""
    vocab_size: int

    def start(self) -> AllOfState:
        """The state before the first generated token."""
        return AllOfState(self)


class AllOfState:
    """Implements ConstraintState."""

    def __init__(self, rule: AllOf) -> None:
        self._rule = rule
        self._states: list[ConstraintState] = [constraint.start() for constraint in rule.constraints]

    def allowed(self) -> Mask:
        """The tokens that all parts allow. Raises RequestError if there is none."""
        size = self._rule.vocab_size
        num_bytes = (size + 7) // 8  # a grammar's mask may have more
        masks = [mask[:num_bytes] for state in self._states if (mask := state.allowed()) is not None]
        if not masks:
            return None
        mask = reduce(np.bitwise_and, masks)
        if not mask[: size // 8].any() and not np.unpackbits(mask[size // 8 :], bitorder="little")[: size % 8].any():
            fields = " and ".join(self._rule.fields)
            raise RequestError(f"{fields}: together they allow no next token", param=self._rule.fields[0])
        return mask

    def accept(self, token_id: int) -> None:
        """Advance by one allowed token. Raises what the parts raise."""
        for state in self._states:
            state.accept(token_id)
