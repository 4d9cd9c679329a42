"""Keeps client text that spells a control token from becoming that token.

A prompt mixes the template's text with clients' text, and only the template may write control tokens. Before rendering,
an escape character is put into every such spelling in a client's text. When the prompt is encoded, the spellings that
are still whole are the template's; then the escapes are dropped. Text between control tokens is encoded in one piece,
so that a prompt without forged spellings gets the same ids as with any other tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

ESCAPE = "\ufdd0"
"""Makes the next character literal. A Unicode noncharacter, which is reserved for internal use; if a client sends one,
it is escaped too."""

_ESCAPED = re.compile(f"{ESCAPE}(.)", re.DOTALL)


class ControlText:
    """The spellings of one vocabulary's added tokens."""

    def __init__(self, spellings: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in spellings.items() if len(text) > 1}
        self._spelling = re.compile(_any_of(list(self._ids)))
        # A lookahead, since spellings may overlap and each of them needs an escape. Their first characters stand before
        # it: a search that can skip to those is three times as fast, and nothing else in this process runs meanwhile.
        firsts = [f"{re.escape(first)}(?={_any_of_rest(rests)})" for first, rests in _by_first_character(self._ids)]
        self._first = re.compile("|".join([ESCAPE, *firsts]))

    def protect(self, value: Any) -> Any:
        """A copy of `value` (plain data) in which no text spells a control token."""
        if isinstance(value, str):
            return self._first.sub(_break, value)
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def split(self, prompt: str) -> Iterator[str | int]:
        """The prompt as plain texts, and the ids of the control tokens between them."""
        at = 0
        for match in self._spelling.finditer(prompt):
            if match.start() > at:
                yield unescape(prompt[at : match.start()])
            yield self._ids[match.group()]
            at = match.end()
        if at < len(prompt):
            yield unescape(prompt[at:])


def unescape(text: str) -> str:
    """The text as the client wrote it."""
    return _ESCAPED.sub(r"\1", text) if ESCAPE in text else text


def _break(match: re.Match[str]) -> str:
    return f"{match.group()}{ESCAPE}"


def _any_of(texts: list[str]) -> str:
    """A pattern for the longest match among `texts`. Built as a tree: some vocabularies have a thousand spellings with
    the same beginning."""
    if not texts:
        return r"(?!)"
    branches = [re.escape(first) + _any_of_rest(rests) for first, rests in _by_first_character(texts)]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _by_first_character(texts: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Each first character, and what follows it."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], []).append(text[1:])
    return sorted(by_first.items())


def _any_of_rest(rests: list[str]) -> str:
    longer = [rest for rest in rests if rest]
    if not longer:
        return ""
    # Greedy: if one spelling is a prefix of another, the longer one wins.
    return _any_of(longer) if len(longer) == len(rests) else f"(?:{_any_of(longer)})?"
