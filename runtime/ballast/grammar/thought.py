"""Where a grammar begins in a reply that thinks first."""

from __future__ import annotations

from ballast.grammar.constraint import Thought
from ballast.text.marks import CALLING, Mark, Start
from ballast.text.tokenizer import Tokenizer


def thought_of(start: Start, tokenizer: Tokenizer) -> Thought | None:
    """What may come before the constrained text of a reply that begins as `start`; None for nothing."""
    begin_id, end_id = (tokenizer.id_of(mark.spelling) for mark in (Mark.THINK, Mark.END_THINK))
    if start is Start.CONTENT or begin_id is None or end_id is None:
        return None
    calling = {tokenizer.id_of(mark.spelling) for mark in CALLING}
    banned = tokenizer.eos_ids | {token_id for token_id in calling if token_id is not None}
    return Thought(end_id, begin_id if start is Start.EITHER else None, banned)
