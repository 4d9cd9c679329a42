"""The tokens around reasoning, as a family spells them."""

from __future__ import annotations

from typing import NamedTuple

from ballast.families.family import ReplyForm


class ThinkTags(NamedTuple):
    """How a family spells the tokens around the reasoning."""

    begin: str = "<think>"
    end: str = "</think>"
    are_paired: bool = False
    """Whether only the text between both is reasoning; otherwise `end` alone is enough."""


DEFAULT_TAGS = ThinkTags()


def tags_of(reply: ReplyForm) -> ThinkTags:
    """The tags of a family."""
    begin, end = reply.think_tags
    return ThinkTags(begin, end, are_paired=reply.has_channels)
