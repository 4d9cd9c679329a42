"""How large a request's body may be."""

from __future__ import annotations

BODY_BYTES_PER_TOKEN = 32
"""Generous: a token of common text takes 4 bytes, or 24 if JSON escapes Chinese as \\uXXXX."""

MIN_BODY_BYTES = 1 << 20


def default_body_bytes(max_model_tokens: int) -> int:
    """Default for the largest request body, in bytes: enough for a prompt that fills the context."""
    return max(MIN_BODY_BYTES, max_model_tokens * BODY_BYTES_PER_TOKEN)


def too_large(max_body_bytes: int) -> str:
    """The message for a body that is larger."""
    return f"the request's body is larger than {max_body_bytes} bytes; send less, or raise --max_body_bytes"
