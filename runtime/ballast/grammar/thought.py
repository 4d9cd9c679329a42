"""Where a grammar begins: at once, or after a thought."""

from __future__ import annotations

from ballast.grammar.constraint import Thought
from ballast.text.marks import CALLING, Mark, Start
from ballast.text.tokenizer import Tokenizer


def held_start(start: Start, asked_to_think: bool | None) -> Start:
    """What a reply that is held to a grammar begins as, where without one it would begin as `start`.

    A mask leaves little of what a model would write, so a tag that stays allowed is soon the likeliest token left. It
    is allowed only where thinking was asked for. `asked_to_think`: what the request says; None when it says nothing.
    """
    closed = start is Start.EITHER and not asked_to_think
    switched_off = start is Start.EITHER_REASONING and asked_to_think is False
    return Start.CONTENT if closed or switched_off else start


def thought_of(start: Start, tokenizer: Tokenizer) -> Thought | None:
    """What may come before the constrained text of a reply that begins as `start`; None for nothing."""
    begin_id, end_id = (tokenizer.id_of(mark.spelling) for mark in (Mark.THINK, Mark.END_THINK))
    if start is Start.CONTENT or begin_id is None or end_id is None:
        return None
    calling = {tokenizer.id_of(mark.spelling) for mark in CALLING}
    banned = tokenizer.eos_ids | {token_id for token_id in calling if token_id is not None}
    return Thought(end_id, begin_id if start is Start.EITHER else None, banned)
