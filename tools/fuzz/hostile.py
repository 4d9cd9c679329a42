"""Values that readers do not expect in files, and changes to trees of plain values."""

from __future__ import annotations

import random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1, -(2**63)),
    *(10**9, 10**18, 10**400, -(10**400), 10**4999),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 1e-30, 1e30, 1e308, -1e308, float("inf"), float("-inf"), float("nan")),
)
TEXTS: tuple[str, ...] = (
    *("", " ", "0", "1", "true", "null", "nan", "inf", "auto", "x", "\u00b2\u00b9", "\u0663", "\ud800", "a\udfffb"),
    *("\x00", "a\x00b", "\x1b[2J", "\n", "\u202e", "\ufffe", "\U0010ffff", "/dev/zero", "/", "..", "/proc/self/mem"),
    *("9" * 400, "9" * 5000, "a" * 100_000, "[" * 3000, "{" * 3000, "%s%n", "{{", "{% for a in b %}", "<think>"),
)
PLAIN: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, ["a", 1, [2]], {"a": {"b": [1]}})


def value(rng: random.Random) -> Any:
    """One hostile value."""
    pool = rng.choice((NUMBERS, TEXTS, PLAIN))
    if rng.random() < 0.03:
        nested: Any = rng.choice(PLAIN)
        for _ in range(rng.choice((10, 100, 400))):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        return nested
    return rng.choice(pool)


def change_tree(tree: Any, rng: random.Random) -> Any:
    """The tree with one change: a value is replaced, removed, duplicated, or moved."""
    places = list(_places(tree))
    if not places:
        return value(rng)
    holder, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.6:
        holder[key] = value(rng)
    elif kind < 0.75:
        del holder[key]
    elif kind < 0.85:
        other, other_key = rng.choice(places)
        moved = other[other_key]
        holder[key] = [] if isinstance(moved, (dict, list)) else moved
    elif isinstance(holder, dict):
        holder[str(value(rng))[:200]] = holder.get(key)
    else:
        holder.extend([holder[key]] * rng.choice((1, 2, 100)))
    return tree


def _places(tree: Any, depth: int = 0) -> Any:
    """(holder, key) of every value. Of large lists, only a few entries."""
    if depth > 6:
        return
    if isinstance(tree, dict):
        for key, below in tree.items():
            yield tree, key
            yield from _places(below, depth + 1)
    elif isinstance(tree, list):
        step = max(1, len(tree) // 8)
        for at in range(0, len(tree), step):
            yield tree, at
            yield from _places(tree[at], depth + 1)


def change_bytes(data: bytes, rng: random.Random, end: int | None = None) -> bytes:
    """The data with bytes before `end` changed, removed, duplicated or inserted."""
    content = bytearray(data)
    end = len(content) if end is None else end
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not content:
            break
        at = rng.randrange(min(end, len(content)))
        kind = rng.random()
        if kind < 0.5:
            content[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind < 0.65:
            content[at] ^= 1 << rng.randrange(8)
        elif kind < 0.75:
            del content[at : at + rng.choice((1, 4, 8, 100))]
        elif kind < 0.85:
            content[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 8))))
        elif kind < 0.93:
            content[at:at] = content[at : at + rng.choice((1, 16, 200))]
        else:
            del content[at:]
    return bytes(content)
