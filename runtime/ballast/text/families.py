"""The chat templates that come with Ballast, and the published ones that they replace.

DeepSeek's published templates fail on conversations that are common today: a second tool turn, a list of tools, null
content. A template with a known fingerprint is therefore replaced by one of Ballast's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Family:
    """Models with the same template whose replies begin the same way."""

    name: str
    """Its name for `--chat_template`."""
    file: str
    thinks: bool = False
    """Whether a reply begins with reasoning when neither it nor the prompt has a tag."""
    options: Mapping[str, object] | None = None
    """Default values for variables of the template; a request may override them."""
    has_switch: bool = False
    """Whether the variable `thinking` switches thinking on and off."""

    def source(self) -> str:
        """The template's text."""
        return (files("ballast.text") / "templates" / self.file).read_text(encoding="utf-8")


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("deepseek-v2", "deepseek-v2.jinja"),
        Family("deepseek-v2.5", "deepseek-v3.jinja"),
        Family("deepseek-v3", "deepseek-v3.jinja"),
        Family("deepseek-r1", "deepseek-v3.jinja", thinks=True, options={"thinking": True}, has_switch=True),
        Family("deepseek-r1-0528", "deepseek-v3.jinja", thinks=True, has_switch=True),
        Family("deepseek-v3.1", "deepseek-v3.1.jinja", has_switch=True),
    )
}

_PUBLISHED: Mapping[str, str] = {
    "04d80a2c7611ded6": "deepseek-v2",
    "4263e45091e06728": "deepseek-v2",  # the special tokens spelled out
    "0c309b8d0564aaad": "deepseek-v2.5",
    "d9c8f40329548077": "deepseek-v3",  # December 2024
    "020d8f40da5abbb9": "deepseek-v3",  # January 2025
    "c3d67ecca2f394fa": "deepseek-v3",  # V3-0324
    "0c930de255eb68d6": "deepseek-r1",  # January 2025, still without <think>
    "3a618e4a6f85e0b9": "deepseek-r1",  # February 2025
    "7be52d1905ead4f1": "deepseek-r1",
    "d09db7922e109a77": "deepseek-r1",  # as llama.cpp carries it
    "57423294a31d012b": "deepseek-r1-0528",
    "f1f1300d611965b4": "deepseek-v3.1",
    "de75392ea51812eb": "deepseek-v3.1",  # with |tojson
    "95d06c8086613582": "deepseek-v3.1",  # as llama.cpp carries it
    "72824802a7021b75": "deepseek-v3.1",  # V3.1-Terminus
}
"""Fingerprint of a template that DeepSeek published → name of the family that replaces it."""

_TINY = frozenset(
    {
        "1498f4e9ae99dd3dd31e344b1002412133850b2296aab4931b37484d637714e2",
        "33284b08006941e7866a244161f80c38d7fe6b10af5fb88133bed737811feea7",
    }
)
"""SHA-256 of the templates that the built-in model and the random ones carry in their files."""

_DELIMITER_TRIM = re.compile(r"(?<=\{[{%])-|-(?=[%}]\})")
_LAYOUT = re.compile(r"\s|\\n")


def family_of(template: str) -> Family | None:
    """The family whose published template this is; None for any other template, which is used unchanged."""
    return FAMILIES.get(_PUBLISHED.get(fingerprint(template), ""))


def is_own(template: str) -> bool:
    """Whether this is, to the letter, one of Ballast's templates. Their time and memory grow with the messages alone,
    so they need no guard."""
    return _sha256(template) in _own()


@lru_cache(maxsize=1)
def _own() -> frozenset[str]:
    return _TINY | {_sha256(family.source()) for family in FAMILIES.values()}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint(template: str) -> str:
    """16 hexadecimal digits that do not depend on what converters change in a template: indentation, and whether line
    breaks in strings are escaped."""
    bare = _LAYOUT.sub("", _DELIMITER_TRIM.sub("", template))
    return _sha256(bare)[:16]
