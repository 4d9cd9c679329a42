"""One choice of a reply: turns its tokens into text, and sends each token's log probability with its text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ballast.engine.request import FinishReason, Output
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.generation.job import Job, Prompt
from ballast.text.detokenizer import Delta, Detokenizer
from ballast.text.reply_parts import Reasoning
from ballast.text.reply_readers import detokenizer_of, parser_of, reasoning_count_of
from ballast.text.tokenizer import Tokenizer
from ballast.wire.piece import Piece, ScoredToken, WireFinishReason


class Choice:
    """Text and counts of one sequence. The joined pieces do not depend on how tokens are split over outputs."""

    def __init__(self, index: int, job: Job, prompt: Prompt, tokenizer: Tokenizer) -> None:
        self.index = index
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.finish_reason: WireFinishReason | None = None
        self._stop_token: int | str | None = None
        self._job = job
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer_of(
            job.layout, tokenizer, job.stop, skip_control=job.skip_control, keep_stop=job.include_stop
        )
        self._parser = parser_of(job.layout)
        self._reasoning = reasoning_count_of(job.layout, tokenizer)
        self._opening = job.opening
        self._begun = False
        self._num_begun = 0
        """Characters before the generated text: the echoed prompt or the opening."""
        self._num_chars = 0
        self._num_taken = 0
        """Generated tokens taken so far, including the one that ended the text."""
        self._waiting: deque[tuple[ScoredToken, int]] = deque()
        """(token, length) of tokens whose text is not sent yet. It is sent once the text has `length` characters."""
        self._undecided: deque[tuple[ScoredToken, int]] = deque()
        """The same for later tokens that are not yet classified as reasoning or content."""

    def take(self, output: Output, prompt_scores: Sequence[TokenLogprobs]) -> Piece:
        """Take one output. With the first token, `prompt_scores` must be complete."""
        self.cached_tokens = output.cached_tokens
        if not output.token_ids:
            return Piece(self.index)
        text = ""
        tokens: tuple[ScoredToken, ...] = ()
        scored: tuple[TokenLogprobs, ...] = ()
        if not self._begun:
            self._begun = True
            scored = tuple(prompt_scores) if self._job.prompt_logprobs is not None else ()
            text, tokens = self._begin(prompt_scores)
            self._num_chars = self._num_begun = len(text)
        if self._job.discard_tokens:
            self.finish_reason = "length"
            return Piece(self.index, tuple(self._parser.push(text)), tokens, self.finish_reason)
        before = self._num_taken
        more, more_tokens = self._decode(output)
        parts = self._parser.push(text + more)
        if self.finish_reason is not None:
            parts += self._parser.finish(is_cut=self.finish_reason == "length")
            if self.finish_reason == "stop" and self._parser.num_calls and not self._job.is_call_forced:
                self.finish_reason = "tool_calls"
        shown = (*tokens, *more_tokens)
        if self._job.hide_reasoning:
            parts = [part for part in parts if not isinstance(part, Reasoning)]
            shown = tuple(token for token in shown if not token.is_reasoning)
        return Piece(
            self.index,
            tuple(parts),
            shown,
            self.finish_reason,
            self._detokenizer.stop,
            self._stop_token,
            tuple(output.token_ids[: self._num_taken - before]),
            scored,
        )

    @property
    def is_to_echo(self) -> bool:
        """Whether the prompt must still be echoed, which happens with the first generated token."""
        return self._job.echo and not self._begun

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens."""
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

    def _decode(self, output: Output) -> tuple[str, tuple[ScoredToken, ...]]:
        visible = output.token_ids
        if output.finish_reason is FinishReason.STOP and visible[-1] in self._job.hidden_ids:
            visible = visible[:-1]
        text: list[str] = []
        tokens: list[ScoredToken] = []
        for n, token_id in enumerate(visible):
            offset = self._num_begun + self._detokenizer.num_chars
            delta = self._detokenizer.push((token_id,))
            self._num_taken += 1
            if output.logprobs:
                end = self._num_begun + self._detokenizer.num_chars + self._detokenizer.inside_char
                self._undecided.append((ScoredToken(token_id, offset, output.logprobs[n]), end))
            self._decide(self._reasoning.take(token_id))
            text.append(self._show(delta, tokens))
            if delta.stopped:
                self.finish_reason = "stop"
                return "".join(text), tuple(tokens)
        if output.finish_reason is not None:
            rest = self._detokenizer.finish()
            text.append(self._show(rest, tokens, final=True))
            self._take_hidden(output, len(visible), tokens)
            if output.finish_reason is FinishReason.STOP:
                self._stop_token = self._job.stop_reasons.get(output.token_ids[-1])
            stopped = rest.stopped or output.finish_reason is FinishReason.STOP
            self.finish_reason = "stop" if stopped else "length"
        return "".join(text), tuple(tokens)

    def _take_hidden(self, output: Output, num_visible: int, tokens: list[ScoredToken]) -> None:
        """Count the token that ended the text but is not part of it, and add its score."""
        for n, token_id in enumerate(output.token_ids[num_visible:], num_visible):
            self._num_taken += 1
            self.completion_tokens += 1
            if output.logprobs:
                tokens.append(ScoredToken(token_id, self._num_chars, output.logprobs[n]))

    def _decide(self, decisions: Sequence[bool]) -> None:
        """Classify the first undecided tokens: True for those that belong to the reasoning."""
        if self._undecided:
            for is_reasoning in decisions:
                token, end = self._undecided.popleft()
                self._waiting.append((replace(token, is_reasoning=is_reasoning), end))

    def _show(self, delta: Delta, tokens: list[ScoredToken], *, final: bool = False) -> str:
        """Count the new text, and move the tokens whose text is sent to `tokens`."""
        if final or delta.stopped:
            self._decide(self._reasoning.finish())
        self.completion_tokens += delta.num_tokens
        self._num_chars += len(delta.text)
        while self._waiting:
            token, end = self._waiting[0]
            if not (final or delta.stopped or end <= self._num_chars):
                break
            is_cut = token.offset > self._num_chars  # a token of the stop string
            tokens.append(replace(token, offset=self._num_chars) if is_cut else token)
            self._waiting.popleft()
        return delta.text
