"""Limits of the reply's length, and truncation of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ballast.engine.limits import Limits
from ballast.wire.openai.request import GenerationRequest


class RequestedTokens(NamedTuple):
    """The requested number of tokens, and the field that specifies it."""

    field: str
    number: int | None
    """None: as many as the limits allow."""


def requested_tokens(body: GenerationRequest) -> RequestedTokens:
    """`max_completion_tokens` takes precedence over `max_tokens`, where -1 means as many as fit."""
    if body.max_completion_tokens is not None:
        return RequestedTokens("max_completion_tokens", body.max_completion_tokens)
    return RequestedTokens("max_tokens", None if body.max_tokens == -1 else body.max_tokens)


def truncated(ids: Sequence[int], body: GenerationRequest, limits: Limits) -> Sequence[int]:
    """The prompt after `truncate_prompt_tokens`, as in vLLM: keeps the end, or with `truncation_side: right` the
    beginning. -1 leaves room for the requested tokens."""
    most = body.truncate_prompt_tokens
    if most is None:
        return ids
    if most == -1:
        wanted = min(requested_tokens(body).number or 1, limits.max_new_tokens)
        most = max(1, limits.max_model_tokens - wanted)
    if len(ids) <= most:
        return ids
    return ids[:most] if body.truncation_side == "right" else ids[-most:]
