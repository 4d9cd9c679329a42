"""The pieces of a choice, before they are converted to an API's format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.text.reply_parts import Content, Part

WireFinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token, and the position of its text."""

    token_id: int
    offset: int
    """Characters from the beginning of the choice's text."""
    scores: TokenLogprobs | None
    """None if the token is the first of a prompt, because it has no predecessor."""
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a choice that one engine output adds. Every field may be empty."""

    index: int
    parts: tuple[Part, ...] = ()
    tokens: tuple[ScoredToken, ...] = ()
    """If log probabilities were requested: every generated token in order. This includes the end token and the tokens
    of a stop string that was cut off; their position is the end of the text."""
    finish_reason: WireFinishReason | None = None
    """Set in the last piece."""
    stop: str | None = None
    """The stop string that ended the choice, in the last piece."""
    stop_token: int | str | None = None
    """The client's stop token that ended the choice, as the client wrote it."""
    token_ids: tuple[int, ...] = ()
    """Number of generated tokens, including the end token and tokens whose text is not complete yet."""
    prompt_scores: tuple[TokenLogprobs, ...] = ()
    """In the first piece, if requested: the scores of the prompt's tokens except the first."""

    @property
    def stop_reason(self) -> int | str | None:
        """As in Whole."""
        return self.stop_token if self.stop is None else self.stop

    @property
    def text(self) -> str:
        """The content, without reasoning and tool calls."""
        return "".join(part.text for part in self.parts if isinstance(part, Content))


@dataclass(slots=True)
class Whole:
    """One choice of a reply that is not streamed."""

    index: int
    parts: list[Part] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_scores: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: WireFinishReason | None = None
    stop: str | None = None
    stop_token: int | str | None = None

    @property
    def stop_reason(self) -> int | str | None:
        """The client's stop string or stop token that ended the choice."""
        return self.stop_token if self.stop is None else self.stop

    def add(self, piece: Piece) -> None:
        """Add a piece of this choice."""
        self.parts += piece.parts
        self.tokens += piece.tokens
        self.token_ids += piece.token_ids
        self.prompt_scores += piece.prompt_scores
        self.finish_reason = piece.finish_reason
        self.stop = piece.stop
        self.stop_token = piece.stop_token
