"""Limits of the reply's length, and truncation of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from ballast.engine.limits import Limits
from ballast.errors import ContextLengthError
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


def granted_tokens(limits: Limits, num_prompt: int, prompt_field: str, max_field: str, requested: int | None) -> int:
    """The number of tokens that a request may generate: what it asks for within the server's cap, else what the limits
    leave. One that asks for all that the server gives gets what fits, as if it named no number."""
    context, most = limits.max_model_tokens, limits.max_new_tokens
    if requested is not None and requested >= most and num_prompt < context:
        return min(most, context - num_prompt)
    granted = min(requested or 1, most)
    if num_prompt + granted > context:
        needs = f"at least {num_prompt + 1} tokens ({num_prompt} in the prompt)"
        if requested is not None:
            needs = f"{num_prompt + granted} tokens ({num_prompt} in the prompt, {granted} for the completion)"
        refuse_length(limits, needs, prompt_field, f"Shorten the prompt or lower {max_field}.")
    return granted if requested is not None else min(most, context - num_prompt)


def refuse_length(limits: Limits, needs: str, prompt_field: str, advice: str = "Shorten the prompt.") -> NoReturn:
    """Raises ContextLengthError for a request that needs more than the context."""
    excess = f"your request needs {needs}"
    raise ContextLengthError(limits.max_model_tokens, excess, param=prompt_field, advice=advice)
