"""The roles of the tokens that divide a reply into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Mark(StrEnum):
    """One Unicode noncharacter for each role. It stands for the token in text, since no text contains it."""

    THINK = "\ufde0"
    END_THINK = "\ufde1"
    CALLS = "\ufde2"
    """Before all calls."""
    END_CALLS = "\ufde3"
    CALL = "\ufde4"
    END_CALL = "\ufde5"
    SEPARATOR = "\ufde6"
    """Between what names the function and what follows."""
    KEY = "\ufde7"
    """Before the name of an argument."""
    END_KEY = "\ufde8"
    VALUE = "\ufde9"
    """Before the value of an argument."""
    END_VALUE = "\ufdea"
    TAG = "\ufdeb"
    """Within every tag of a call, after its `<` or `</`. The rest of the tag is text."""
    START = "\ufddb"
    """Before the role of a message, in a reply of several messages on channels."""
    CHANNEL = "\ufddc"
    """Before the name of a message's channel."""
    CONSTRAIN = "\ufddd"
    """Before the type of a message's text."""
    MESSAGE = "\ufdde"
    """Before the text of a message."""
    END = "\ufddf"
    """After the text of a message that another one follows."""


OPENS_CALLS = frozenset({Mark.CALLS, Mark.CALL, Mark.TAG})
CLOSES_CALLS: Mapping[Mark, Mark] = {Mark.CALLS: Mark.END_CALLS, Mark.CALL: Mark.END_CALL}
"""The mark that opens calls → the one that closes them. Tags are closed by their text."""
THINKING = frozenset({Mark.THINK, Mark.END_THINK})
