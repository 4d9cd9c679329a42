"""How much of a prompt the prompts of the conversation's later turns repeat."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence


def repeated_tokens(
    ids: Sequence[int], prompt: str, beginnings: Iterable[str], encode: Callable[[str], list[int]]
) -> tuple[int, ...]:
    """Ascending numbers of the prompt's tokens, each at the end of what `prompt` and a text of `beginnings` have in
    common. `ids`: of the prompt, by `encode`."""
    found: set[int] = set()
    for text in beginnings:
        end = _num_common(prompt, text)
        found.add(_num_tokens(ids, prompt[:end], prompt[end:], encode))
    return tuple(sorted(found - {0}))


def _num_common(a: str, b: str) -> int:
    """Characters at the beginning of both texts."""
    most = min(len(a), len(b))
    return bisect_left(range(most), True, key=lambda end: a[: end + 1] != b[: end + 1])


def _num_tokens(ids: Sequence[int], beginning: str, rest: str, encode: Callable[[str], list[int]]) -> int:
    """Tokens of `beginning` that the whole text begins with. Encodes the shorter part, if that is enough."""
    if len(rest) <= len(beginning):
        last = encode(rest)
        num_tokens = len(ids) - len(last)
        if list(ids[num_tokens:]) == last:
            return num_tokens
    first = encode(beginning)
    both = zip(ids, first, strict=False)
    return next((count for count, (a, b) in enumerate(both) if a != b), min(len(ids), len(first)))
