"""The tokens around reasoning, as a family spells them."""

from __future__ import annotations

from typing import NamedTuple


class ThinkTags(NamedTuple):
    """How a family spells the tokens around the reasoning."""

    begin: str = "<think>"
    end: str = "</think>"


DEFAULT_TAGS = ThinkTags()
