"""The library's results, with the names of vLLM's `RequestOutput`, built from the pieces of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.generation.job import Job
from ballast.library.params import RequestOutputKind
from ballast.text.reply_parts import Message, Reasoning
from ballast.text.tokenizer import Tokenizer
from ballast.wire.piece import Piece, ScoredToken, Whole

ABORT = "abort"
"""The finish reason after `AsyncLLM.abort`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of a job, with the job's state at that time."""

    job: Job
    piece: Piece
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of one token at one position, in the model's own distribution."""

    logprob: float
    """Natural logarithm."""
    decoded_token: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that the model requests."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One reply to a prompt; from `LLM.stream`, the part since the last output."""

    index: int
    """0 to n - 1."""
    text: str
    """Without reasoning and tool calls."""
    token_ids: tuple[int, ...] = ()
    """Includes the end token."""
    finish_reason: str | None = None
    """stop, length, tool_calls, or abort (after `AsyncLLM.abort`); None while the reply is generated."""
    stop_reason: int | str | None = None
    """The entry of `stop` or `stop_token_ids` that ended the reply."""
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    """At each position, the sampled token and the most probable ones; None unless requested."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only in the last output of a reply."""

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the sampled tokens' log probabilities; None unless requested."""
        if self.logprobs is None:
            return None
        return sum(scores[token].logprob for token, scores in zip(self.token_ids, self.logprobs, strict=False))

    def finished(self) -> bool:
        """Whether the reply has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All replies to one prompt."""

    request_id: str
    prompt: str | None
    """The prompt as given; None for token ids and chats."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...] = ()
    """All replies; from `AsyncLLM`, only the reply that has changed, unless only final outputs are requested."""
    finished: bool = True
    """Whether all replies have ended."""
    num_cached_tokens: int = 0
    """Number of prompt tokens from the prefix cache."""
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    """Log probabilities at each position of the prompt; None for the first, which has no predecessor. None unless
    requested."""


class Replies:
    """Builds the outputs of one request from its pieces."""

    def __init__(self, request_id: str, prompt: str | None, kind: RequestOutputKind, tokenizer: Tokenizer) -> None:
        self._base = RequestOutput(request_id, prompt, (), finished=False)
        self._kind = kind
        self._tokenizer = tokenizer
        self._choices: list[_Choice] = []

    def take(self, step: Step) -> RequestOutput | None:
        """The output for this piece; None if this kind of output has none."""
        job, piece = step.job, step.piece
        if not self._choices:
            scored = job.sampling.logprobs is not None
            self._choices = [_Choice(index, scored, self._tokenizer) for index in range(job.num_choices)]
            self._base = replace(self._base, prompt_token_ids=job.prompts[0].ids)
        choice = self._choices[piece.index]
        choice.whole.add(piece)
        self._base = replace(
            self._base,
            num_cached_tokens=step.cached_tokens,
            finished=all(each.whole.finish_reason is not None for each in self._choices),
        )
        if piece.prompt_scores:
            scores = (_alternatives(each, self._tokenizer) for each in piece.prompt_scores)
            self._base = replace(self._base, prompt_logprobs=(None, *scores))
        if self._kind is RequestOutputKind.FINAL_ONLY:
            outputs = [each.in_full() for each in self._choices] if self._base.finished else []
        elif self._kind is RequestOutputKind.DELTA:
            outputs = [choice.added(piece)]
        else:
            outputs = [choice.so_far(piece)]
        return replace(self._base, outputs=tuple(outputs)) if outputs else None

    def aborted(self) -> RequestOutput:
        """The last output of an aborted request: the unfinished replies, in full or as a delta."""
        is_delta = self._kind is RequestOutputKind.DELTA
        ended = [
            CompletionOutput(each.whole.index, "", finish_reason=ABORT)
            if is_delta
            else replace(each.in_full(), finish_reason=ABORT)
            for each in self._choices
            if each.whole.finish_reason is None
        ]
        return replace(
            self._base, outputs=tuple(ended or [CompletionOutput(0, "", finish_reason=ABORT)]), finished=True
        )


class _Choice:
    """One reply, as generated so far."""

    def __init__(self, index: int, scored: bool, tokenizer: Tokenizer) -> None:
        self.whole = Whole(index)
        self._scored = scored
        self._tokenizer = tokenizer
        self._shown = CompletionOutput(index, "")

    def in_full(self) -> CompletionOutput:
        return whole_output(self.whole, self._tokenizer, with_logprobs=self._scored)

    def added(self, piece: Piece) -> CompletionOutput:
        output = piece_output(piece, self._tokenizer, with_logprobs=self._scored)
        return output if piece.finish_reason is None else replace(output, tool_calls=self.in_full().tool_calls)

    def so_far(self, piece: Piece) -> CompletionOutput:
        if piece.finish_reason is not None:
            return self.in_full()
        new, old = piece_output(piece, self._tokenizer, with_logprobs=self._scored), self._shown
        self._shown = replace(
            new,
            text=old.text + new.text,
            reasoning=old.reasoning + new.reasoning,
            token_ids=old.token_ids + new.token_ids,
            logprobs=None if new.logprobs is None else (old.logprobs or ()) + new.logprobs,
        )
        return self._shown


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
    """The part of a choice that one step added."""
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
        found.append(_alternatives(scores, tokenizer))
    return tuple(found)


def _alternatives(scores: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    pairs = {scores.token_id: scores.logprob, **dict(scores.top)}
    return {id_: Logprob(value, tokenizer.decode((id_,))) for id_, value in pairs.items()}
