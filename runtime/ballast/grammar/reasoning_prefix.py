"""Decides where a grammar begins: at the first token, or after the reasoning."""

from __future__ import annotations

from ballast.families.marks import Mark
from ballast.grammar.constraint import ReasoningPrefix
from ballast.text.marks import Start
from ballast.text.tokenizer import Tokenizer


def constrained_start(start: Start, thinking_enabled: bool | None) -> Start:
    """How a reply under a grammar begins, if it would begin as `start` without one.

    A mask forbids most of the tokens that a model would write, so an allowed `<think>` easily becomes the likeliest
    one. It is allowed only if the request asks for thinking. `thinking_enabled` is None when the request does not say.
    """
    closed = start is Start.EITHER and not thinking_enabled
    switched_off = start is Start.EITHER_REASONING and thinking_enabled is False
    return Start.CONTENT if closed or switched_off else start


def reasoning_prefix(start: Start, tokenizer: Tokenizer) -> ReasoningPrefix | None:
    """The reasoning that may precede the constrained text of a reply that begins as `start`; None if none may."""
    spellings = tokenizer.reply.spellings
    begin_id, end_id = (tokenizer.id_of(spellings[mark]) for mark in (Mark.THINK, Mark.END_THINK))
    if start is Start.CONTENT or begin_id is None or end_id is None:
        return None
    calling = {tokenizer.id_of(text) for text in tokenizer.reply.calling.values()}
    banned = tokenizer.eos_ids | {token_id for token_id in calling if token_id is not None}
    return ReasoningPrefix(end_id, begin_id if start is Start.EITHER else None, banned)
