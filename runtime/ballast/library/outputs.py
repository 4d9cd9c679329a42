"""What the library returns, in the words of vLLM's `RequestOutput`, and how it is made from the pieces of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ballast.server.wire.piece import Piece, ScoredToken, Whole
from ballast.text.reply_parts import Message, Reasoning
from ballast.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of one token at one position, in the model's own distribution."""

    logprob: float
    """Natural logarithm."""
    decoded_token: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One reply to a prompt; from `LLM.stream`, what came since the last one."""

    index: int
    """0 to n - 1."""
    text: str
    """Without reasoning and tool calls."""
    token_ids: tuple[int, ...] = ()
    """With the token that ended it."""
    finish_reason: str | None = None
    """stop, length or tool_calls; None in a stream that goes on."""
    stop_reason: int | str | None = None
    """The one of `stop` or `stop_token_ids` that ended it."""
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    """At each position, the sampled token and the most probable ones; None unless asked for."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Always empty in a stream."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All replies to one prompt."""

    request_id: str
    prompt: str | None
    """As given; None for token ids and for chats."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...] = field(default=())
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache had."""


def whole_output(whole: Whole, tokenizer: Tokenizer, *, with_logprobs: bool) -> CompletionOutput:
    """A finished choice."""
    message = Message.of(whole.parts)
    return CompletionOutput(
        whole.index,
        message.content,
        tuple(whole.token_ids),
        whole.finish_reason,
        whole.stop_reason,
        _logprobs(whole.tokens, tokenizer) if with_logprobs else None,
        message.reasoning,
        tuple(ToolCall(call.id, call.name, call.arguments) for call in message.calls),
    )


def piece_output(piece: Piece, tokenizer: Tokenizer, *, with_logprobs: bool) -> CompletionOutput:
    """What one step added to a choice."""
    return CompletionOutput(
        piece.index,
        piece.text,
        piece.token_ids,
        piece.finish_reason,
        piece.stop_reason,
        _logprobs(piece.tokens, tokenizer) if with_logprobs else None,
        "".join(part.text for part in piece.parts if isinstance(part, Reasoning)),
    )


def _logprobs(tokens: Sequence[ScoredToken], tokenizer: Tokenizer) -> tuple[dict[int, Logprob], ...]:
    found = []
    for token in tokens:
        scores = token.scores
        assert scores is not None, "a generated token has scores"
        pairs = {scores.token_id: scores.logprob, **dict(scores.top)}
        found.append({id_: Logprob(value, tokenizer.decode((id_,))) for id_, value in pairs.items()})
    return tuple(found)
