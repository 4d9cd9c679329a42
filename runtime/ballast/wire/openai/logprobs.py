"""Log probabilities in OpenAI's two formats: for chats, and the older one for text completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.wire.json_text import list_to_json
from ballast.wire.piece import ScoredToken

TokenBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tokens are shown."""

    token_bytes: TokenBytes
    as_ids: bool = False
    """As token_id:5, for vLLM's `return_tokens_as_token_ids`."""

    def replaced(self, token_id: int) -> str:
        """The token's text, with U+FFFD for invalid UTF-8."""
        return f"token_id:{token_id}" if self.as_ids else self.token_bytes(token_id).decode("utf-8", errors="replace")

    def distinct(self, token_id: int) -> str:
        r"""The token's text, or `bytes:\xe4\xb8` for invalid UTF-8, so that all spellings differ."""
        if self.as_ids:
            return f"token_id:{token_id}"
        raw = self.token_bytes(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokens: Sequence[ScoredToken], spelling: Spelling) -> bytes:
    """`choices[].logprobs` of a chat, as JSON. Reasoning tokens are listed separately, as in DeepSeek's API."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = spelling.token_bytes(token_id)
        return {"token": spelling.replaced(token_id), "logprob": logprob, "bytes": list(raw)}

    def shown(scores: TokenLogprobs) -> dict[str, Any]:
        top = [entry(token_id, logprob) for token_id, logprob in scores.top]
        return {**entry(scores.token_id, scores.logprob), "top_logprobs": top}

    by_reasoning: dict[bool, list[TokenLogprobs]] = {True: [], False: []}
    for token in tokens:
        if token.scores is not None:
            by_reasoning[token.is_reasoning].append(token.scores)
    content = list_to_json(by_reasoning[False], shown)
    reasoning = list_to_json(by_reasoning[True], shown) if by_reasoning[True] else b"null"
    return b'{"content":%b,"refusal":null,"reasoning_content":%b}' % (content, reasoning)


def prompt_logprobs(scores: Sequence[TokenLogprobs], spelling: Spelling) -> bytes:
    """`prompt_logprobs` of vLLM's API, as JSON: null for the first token; for every other token, the token and its
    alternatives by id. A token outside the alternatives has the rank null."""

    def shown(token: TokenLogprobs) -> dict[str, Any]:
        ranked = {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(token.top, 1)}
        named = {token.token_id: (token.logprob, None)} | ranked
        return {
            str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": spelling.replaced(token_id)}
            for token_id, (logprob, rank) in named.items()
        }

    rest = list_to_json(scores, shown)
    return b"[null%b%b" % (b"," if scores else b"", rest[1:])


def text_logprobs(tokens: Sequence[ScoredToken], spelling: Spelling) -> bytes:
    """`choices[].logprobs` of a text completion, as JSON. The first token of an echoed prompt has null instead of
    numbers."""

    def top(token: ScoredToken) -> dict[str, float] | None:
        if token.scores is None:
            return None
        named = {spelling.distinct(token_id): logprob for token_id, logprob in token.scores.top}
        return {**named, spelling.distinct(token.token_id): token.scores.logprob}

    return b'{"tokens":%b,"token_logprobs":%b,"top_logprobs":%b,"text_offset":%b}' % (
        list_to_json(tokens, lambda token: spelling.distinct(token.token_id)),
        list_to_json(tokens, lambda token: token.scores and token.scores.logprob),
        list_to_json(tokens, top),
        list_to_json(tokens, lambda token: token.offset),
    )
