"""Keeps text that spells a control token from becoming one.

A prompt mixes what the template wrote with what clients wrote, and only the former may steer the model. Spellings in
a client's text are therefore broken by an escape before the template sees them; when the prompt is encoded, whole
spellings are the template's, and the escapes are dropped. Text around them is encoded in one piece with its
surroundings, so that without a forged spelling the ids are those that everyone else gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

ESCAPE = "\ufdd0"
"""Takes its next character's meaning away. A noncharacter, in Unicode's words for internal use; one that a client sends
all the same is escaped itself."""

_ESCAPED = re.compile(f"{ESCAPE}(.)", re.DOTALL)


class ControlText:
    """The spellings of one vocabulary's added tokens."""

    def __init__(self, spellings: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in spellings.items() if len(text) > 1}
        pattern = _any_of(list(self._ids))
        self._spelling = re.compile(pattern)
        # A lookahead, because spellings may overlap, and each one has to be broken.
        self._first = re.compile(f"{ESCAPE}|(?={pattern})(?s:.)")

    def protect(self, value: Any) -> Any:
        """A copy of `value`, plain data, in which no text spells a control token."""
        if isinstance(value, str):
            return self._first.sub(_break, value)
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def split(self, prompt: str) -> Iterator[str | int]:
        """The prompt as plain texts and the ids of the control tokens between them."""
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
    """A pattern for the longest of `texts`, as a tree: some vocabularies have a thousand that begin alike."""
    if not texts:
        return r"(?!)"
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(first) + _any_of_rest(rests) for first, rests in sorted(by_first.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _any_of_rest(rests: list[str]) -> str:
    longer = [rest for rest in rests if rest]
    if not longer:
        return ""
    # Greedy: where one spelling begins another, the longer one is meant.
    return _any_of(longer) if len(longer) == len(rests) else f"(?:{_any_of(longer)})?"
