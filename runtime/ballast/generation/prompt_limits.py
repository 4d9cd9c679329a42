"""How many tokens a request may generate, and how many of its prompt are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ballast.engine.limits import Limits
from ballast.wire.openai.request import GenerationRequest


class AskedTokens(NamedTuple):
    """The number of tokens that a request asks for, and the field by which it does."""

    field: str
    number: int | None
    """None: as many as the limits leave."""


def asked_tokens(body: GenerationRequest) -> AskedTokens:
    """`max_completion_tokens` counts before `max_tokens`, whose -1 means as many as fit."""
    if body.max_completion_tokens is not None:
        return AskedTokens("max_completion_tokens", body.max_completion_tokens)
    return AskedTokens("max_tokens", None if body.max_tokens == -1 else body.max_tokens)


def truncated(ids: Sequence[int], body: GenerationRequest, limits: Limits) -> Sequence[int]:
    """The part of a prompt that `truncate_prompt_tokens` keeps, as in vLLM: its end, or with `truncation_side: right`
    its beginning. -1 leaves room for the tokens that the request asks for."""
    most = body.truncate_prompt_tokens
    if most is None:
        return ids
    if most == -1:
        wanted = min(asked_tokens(body).number or 1, limits.max_new_tokens)
        most = max(1, limits.max_model_tokens - wanted)
    if len(ids) <= most:
        return ids
    return ids[:most] if body.truncation_side == "right" else ids[-most:]
