"""Replies of llama.cpp's native completions as bytes: one object per choice, or events without an end mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballast.text.reply_parts import Content
from ballast.wire.json_text import event, to_json
from ballast.wire.llama_cpp.request import DRAWN_SEED
from ballast.wire.openai.logprobs import Spelling, TokenBytes
from ballast.wire.piece import Piece, ScoredToken, Whole
from ballast.wire.usage import Counts, Progress

ANY_SLOT = -1


@dataclass(frozen=True, slots=True)
class LlamaReply:
    """One reply, streamed or whole."""

    model: str
    prompts: Sequence[str]
    """The prompt of each choice, as text where the client sent one."""
    num_new: int
    """Maximum number of tokens of a choice."""
    token_bytes: TokenBytes
    shows_tokens: bool
    shows_probabilities: bool
    seed: int | None = None
    """None: the server draws a random seed."""
    _with_new_line: set[int] = field(default_factory=set)
    """Streamed choices whose text has had a line break."""

    def opening(self, counts: Counts) -> bytes:
        """Nothing."""
        del counts
        return b""

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """An event with more text."""
        text = piece.text
        if not text and not piece.token_ids:
            return b""
        if "\n" in text:
            self._with_new_line.add(piece.index)
        body = {
            **self._head(piece.index, text, piece.token_ids, counts),
            "stop": False,
            **self._probabilities(piece.tokens),
        }
        return event(body)

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """An event with the progress of a prompt."""
        return event(
            {**self._head(progress.index, "", (), counts), "stop": False, "prompt_progress": progress.to_wire()}
        )

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """The event that reports why a choice ended. Its text has been sent before."""
        return event(self._ended(piece, self._head(piece.index, "", (), counts), counts))

    def end(self, counts: Counts) -> bytes:
        """Nothing: the last `finish` ends the stream."""
        del counts
        return b""

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last event of a stream that failed."""
        del status
        return event(body)

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The choice, or a list of several."""
        bodies = [self._whole(choice, counts) for choice in choices]
        return to_json(bodies[0] if len(bodies) == 1 else bodies)

    def _whole(self, choice: Whole, counts: Counts) -> dict[str, Any]:
        text = "".join(part.text for part in choice.parts if isinstance(part, Content))
        head = self._head(choice.index, text, choice.token_ids if self.shows_tokens else (), counts)
        return {**self._ended(choice, head, counts), **self._probabilities(choice.tokens)}

    def _head(self, index: int, text: str, token_ids: Sequence[int], counts: Counts) -> dict[str, Any]:
        usage = counts.usage
        return {
            "index": index,
            "content": text,
            "tokens": list(token_ids),
            "id_slot": ANY_SLOT,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
        }

    def _ended(self, choice: Piece | Whole, head: dict[str, Any], counts: Counts) -> dict[str, Any]:
        kind = "limit" if choice.finish_reason == "length" else "eos" if choice.stop is None else "word"
        return {
            **head,
            "stop": True,
            "model": self.model,
            "generation_settings": {"n_predict": self.num_new, "seed": DRAWN_SEED if self.seed is None else self.seed},
            "prompt": self.prompts[choice.index],
            "stop_type": kind,
            "stopping_word": choice.stop or "",
            "truncated": False,
            "has_new_line": choice.index in self._with_new_line or "\n" in head["content"],
            "tokens_cached": counts.usage.cached_tokens,
            "timings": counts.timings.to_wire(),
        }

    def _probabilities(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        if not self.shows_probabilities:
            return {}
        shown = []
        for token in tokens:
            if token.scores is not None:
                top = [self._one(token_id, logprob) for token_id, logprob in token.scores.top]
                shown.append({**self._one(token.token_id, token.scores.logprob), "top_logprobs": top})
        return {"completion_probabilities": shown}

    def _one(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self.token_bytes(token_id)
        spelled = Spelling(self.token_bytes).replaced(token_id)
        return {"id": token_id, "token": spelled, "bytes": list(raw), "logprob": logprob}
