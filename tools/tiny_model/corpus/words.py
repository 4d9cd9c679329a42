"""Words for tasks, and random words that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import yaml

from tools.tiny_model.corpus.draw import Draw

_POOLS: dict[str, tuple[str, ...]] = {
    name: tuple(text.split())
    for name, text in yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")).items()
}
NOUNS = _POOLS["nouns"]
ADJECTIVES = _POOLS["adjectives"]
VERBS = _POOLS["verbs"]
NAMES = _POOLS["names"]
CITIES = _POOLS["cities"]
ZH_NOUNS = _POOLS["zh_nouns"]
ZH_NAMES = _POOLS["zh_names"]
ZH_CITIES = _POOLS["zh_cities"]
TOOL_VERBS, FIELDS, LANDS, FOODS = (_POOLS[name] for name in ("verbs_of_tools", "fields", "lands", "foods"))
_ONSETS, _NUCLEI, _CODAS = _POOLS["onsets"], _POOLS["nuclei"], ("", "", "", *_POOLS["codas"])
_ZH_CHARS = "".join(_POOLS["zh_chars"])
_SIGNS = "-_.:/+=#@!?*&%"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@lru_cache(maxsize=256)
def _side(items: tuple[str, ...], exam: bool) -> tuple[str, ...]:
    return tuple(Draw(0, exam=exam).side(items))


def one(draw: Draw, pool: tuple[str, ...]) -> str:
    """A word of the pool on this side of the split."""
    return draw.pick(_side(pool, draw.exam))


def several(draw: Draw, pool: Sequence[str], low: int, high: int) -> list[str]:
    """Distinct words of the pool, from either side: the list must be new, not its words."""
    return draw.some(pool, low, high)


def made_up(draw: Draw) -> str:
    """A random word that could exist."""
    syllables = (draw.pick(_ONSETS) + draw.pick(_NUCLEI) + draw.pick(_CODAS) for _ in range(draw.whole(1, 3)))
    return "".join(syllables)


def name(draw: Draw) -> str:
    """A first name, real or generated."""
    return one(draw, NAMES) if draw.chance(0.6) else made_up(draw).capitalize()


def city(draw: Draw) -> str:
    return one(draw, CITIES) if draw.chance(0.6) else made_up(draw).capitalize()


def scramble(draw: Draw) -> str:
    """Random letters, digits and punctuation, as in identifiers and passwords."""
    kinds = draw.pick((_LETTERS, _LETTERS.upper(), "0123456789", _LETTERS + "0123456789", _LETTERS + _SIGNS))
    size = draw.whole(2, 12)
    text = "".join(draw.pick(kinds) for _ in range(size))
    return draw.pick((text, text, f"{text}-{draw.digits(4)}", f"{made_up(draw)}_{draw.digits(3)}"))


def zh_text(draw: Draw) -> str:
    """Random Chinese characters."""
    return "".join(draw.pick(_ZH_CHARS) for _ in range(draw.whole(2, 10)))


def sentence(draw: Draw) -> str:
    """A sentence with some content."""
    first = draw.pick((name(draw), f"The {draw.pick(ADJECTIVES)} {draw.pick(NOUNS)}", f"My {draw.pick(NOUNS)}"))
    rest = f"{draw.pick(VERBS)} the {draw.pick(ADJECTIVES)} {draw.pick(NOUNS)}"
    tail = draw.pick(("", "", f" in {city(draw)}", f" with {draw.digits(2)} {draw.pick(NOUNS)}s", " again"))
    return f"{first} {rest}{tail}{draw.pick('...!?')}"
