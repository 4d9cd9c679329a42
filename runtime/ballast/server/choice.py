"""One choice of a reply: a sequence's tokens become text, and each token's log probability goes out with its text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ballast.engine.logprobs import TokenLogprobs
from ballast.engine.request import FinishReason, Output
from ballast.server.job import Job, Prompt
from ballast.text.detokenizer import Delta, Detokenizer
from ballast.text.marks import ReasoningCount
from ballast.text.output_parser import OutputParser
from ballast.text.reply_parts import Content, Part
from ballast.text.tokenizer import Tokenizer

WireFinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the text and where its text begins."""

    token_id: int
    offset: int
    """In characters, from the beginning of the choice's text."""
    scores: TokenLogprobs | None
    """None: the first token of a prompt, which nothing came before."""
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output adds to a choice; all may be empty."""

    index: int
    parts: tuple[Part, ...] = ()
    tokens: tuple[ScoredToken, ...] = ()
    """In order and without gaps, where log probabilities were asked for; tokens of a stop string that was cut off are
    left out, as is the token that ended the text."""
    finish_reason: WireFinishReason | None = None
    """Set by the last piece."""
    stop: str | None = None
    """The stop string that ended the choice, in the last piece."""
    token_ids: tuple[int, ...] = ()
    """Generated tokens, whether their text is out yet or not; without the one that ended the text."""

    @property
    def text(self) -> str:
        """The content, without reasoning and tool calls."""
        return "".join(part.text for part in self.parts if isinstance(part, Content))


class Choice:
    """Text and counts of one sequence. The pieces together say the same however the tokens come."""

    def __init__(self, index: int, job: Job, prompt: Prompt, tokenizer: Tokenizer) -> None:
        self.index = index
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.finish_reason: WireFinishReason | None = None
        self._job = job
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, job.stop, keep_stop=job.include_stop, marks=job.layout.marks)
        self._parser = OutputParser(job.layout.start)
        self._reasoning = ReasoningCount(tokenizer, job.layout)
        self._opening = job.opening
        self._begun = False
        self._num_begun = 0
        """Characters of the text before the first generated one."""
        self._num_chars = 0
        self._num_pushed = 0
        """Generated tokens that were turned into text."""
        self._waiting: deque[tuple[ScoredToken, int]] = deque()
        """Tokens whose text is not out yet, each with the length of text from which on it is."""

    def take(self, output: Output, prompt_scores: Sequence[TokenLogprobs]) -> Piece:
        """Go on by one output. `prompt_scores` are those of the whole prompt, once the first token is there."""
        self.cached_tokens = output.cached_tokens
        if not output.token_ids:
            return Piece(self.index)
        text = ""
        tokens: tuple[ScoredToken, ...] = ()
        if not self._begun:
            self._begun = True
            text, tokens = self._begin(prompt_scores)
            self._num_chars = self._num_begun = len(text)
        if self._job.discard_tokens:
            self.finish_reason = "length"
            return Piece(self.index, tuple(self._parser.push(text)), tokens, self.finish_reason)
        before = self._num_pushed
        more, more_tokens = self._go_on(output)
        parts = self._parser.push(text + more)
        if self.finish_reason is not None:
            parts += self._parser.finish()
            if self.finish_reason == "stop" and self._parser.num_calls and not self._job.is_call_forced:
                self.finish_reason = "tool_calls"
        return Piece(
            self.index,
            tuple(parts),
            (*tokens, *more_tokens),
            self.finish_reason,
            self._detokenizer.stop,
            tuple(output.token_ids[: self._num_pushed - before]),
        )

    @property
    def is_to_echo(self) -> bool:
        """Whether the first generated token, and with it the prompt's text, is yet to come."""
        return self._job.echo and not self._begun

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens it took to think."""
        return self._reasoning.num_tokens

    def _begin(self, prompt_scores: Sequence[TokenLogprobs]) -> tuple[str, tuple[ScoredToken, ...]]:
        if not self._job.echo:
            return self._opening, ()
        shown = self._prompt.ids[self._prompt.num_added :]
        decoder = Detokenizer(self._tokenizer, skip_control=False)
        text, offsets = "", []
        for token_id in shown:
            offsets.append(decoder.num_chars)
            text += decoder.push((token_id,)).text
        text += decoder.finish().text
        if self._job.sampling.logprobs is None:
            return text, ()
        scores = (None, *prompt_scores)[self._prompt.num_added :]
        return text, tuple(map(ScoredToken, shown, offsets, scores))

    def _go_on(self, output: Output) -> tuple[str, tuple[ScoredToken, ...]]:
        visible = output.token_ids
        if output.finish_reason is FinishReason.STOP and visible[-1] in self._job.hidden_ids:
            visible = visible[:-1]
        text: list[str] = []
        tokens: list[ScoredToken] = []
        for n, token_id in enumerate(visible):
            offset = self._num_begun + self._detokenizer.num_chars
            delta = self._detokenizer.push((token_id,))
            is_reasoning = self._reasoning.take(token_id)
            self._num_pushed += 1
            if output.logprobs:
                end = self._num_begun + self._detokenizer.num_chars + self._detokenizer.inside_char
                self._waiting.append((ScoredToken(token_id, offset, output.logprobs[n], is_reasoning), end))
            text.append(self._show(delta, tokens))
            if delta.stopped:
                self.finish_reason = "stop"
                return "".join(text), tuple(tokens)
        self.completion_tokens += len(output.token_ids) - len(visible)
        if output.finish_reason is not None:
            rest = self._detokenizer.finish()
            text.append(self._show(rest, tokens, final=True))
            stopped = rest.stopped or output.finish_reason is FinishReason.STOP
            self.finish_reason = "stop" if stopped else "length"
        return "".join(text), tuple(tokens)

    def _show(self, delta: Delta, tokens: list[ScoredToken], *, final: bool = False) -> str:
        """Count what came out, and let the tokens go whose text is out."""
        self.completion_tokens += delta.num_tokens
        self._num_chars += len(delta.text)
        while self._waiting:
            token, end = self._waiting[0]
            # Of what a stop string takes away, a token that begins before it is still shown.
            is_out = token.offset < self._num_chars if delta.stopped else final or end <= self._num_chars
            if not is_out:
                break
            tokens.append(token)
            self._waiting.popleft()
        return delta.text
