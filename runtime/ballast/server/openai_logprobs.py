"""Log probabilities in OpenAI's two formats: one for chats, an older one for text completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ballast.server.choice import ScoredToken

TokenBytes = Callable[[int], bytes]


def chat_logprobs(tokens: Sequence[ScoredToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(token_id)
        return {"token": raw.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(raw)}

    content = [
        {
            **entry(token.token_id, token.scores.logprob),
            "top_logprobs": [entry(token_id, logprob) for token_id, logprob in token.scores.top],
        }
        for token in tokens
        if token.scores is not None
    ]
    return {"content": content, "refusal": None}


def text_logprobs(tokens: Sequence[ScoredToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion. The first token of an echoed prompt has null in place of numbers. A
    token that is no text by itself is spelled `bytes:\\xe4\\xb8`, so that no two are spelled alike."""

    def top(token: ScoredToken) -> dict[str, float] | None:
        if token.scores is None:
            return None
        named = {_spelled(token_bytes(token_id)): logprob for token_id, logprob in token.scores.top}
        return {**named, _spelled(token_bytes(token.token_id)): token.scores.logprob}

    return {
        "tokens": [_spelled(token_bytes(token.token_id)) for token in tokens],
        "token_logprobs": [token.scores.logprob if token.scores else None for token in tokens],
        "top_logprobs": [top(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _spelled(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
