"""Replies of Ollama's API: one object, or a stream with one object per line."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from ballast.wire.content_blocks import Block, Blocks, Step, blocks_of
from ballast.wire.json_text import to_json
from ballast.wire.openai.logprobs import Spelling, TokenBytes
from ballast.wire.piece import Piece, ScoredToken, Whole
from ballast.wire.usage import Counts, Progress

LINES = "application/x-ndjson"
_NS_PER_S = 1_000_000_000
_REASONS = {"stop": "stop", "length": "length", "tool_calls": "stop"}

Kind = Literal["chat", "generate"]


def written_time(seconds: float | None = None) -> str:
    """A time in Ollama's format; by default the current time."""
    now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


def error_object(body: Mapping[str, Any]) -> dict[str, str]:
    """Converts an error from OpenAI's envelope to Ollama's."""
    error = body.get("error") or {}
    return {"error": str(error.get("message") or "")}


def loaded(kind: Kind, model: str) -> bytes:
    """The reply to a request without a prompt, which only loads the model."""
    return line({**_object(kind, model), "done": True, "done_reason": "load"})


def line(value: Any) -> bytes:
    """One line of a stream."""
    return to_json(value) + b"\n"


class OllamaReply:
    """A reply to a chat or a prompt."""

    def __init__(
        self, kind: Kind, model: str, started: float, token_bytes: TokenBytes, *, shows_logprobs: bool = False
    ) -> None:
        """`started`: arrival time of the request, from `time.monotonic`."""
        self._kind, self._model = kind, model
        self._started = started
        self._spelling = Spelling(token_bytes)
        self._shows_logprobs = shows_logprobs
        self._blocks = Blocks()

    def keep_alive(self) -> bytes:
        """An empty line for a stream without output for a long time."""
        return line(self._part())

    def opening(self, counts: Counts) -> bytes:
        """Nothing."""
        del counts
        return b""

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """A line for each change of the reply; a tool call is one when it is complete."""
        del counts
        shown = [each for step in self._blocks.take(piece.parts) for each in self._shown(*step)]
        if piece.tokens and self._shows_logprobs:
            shown = shown or [self._part()]
            shown[0]["logprobs"] = self._logprobs(piece.tokens)
        return b"".join(map(line, shown))

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """Nothing: the API has no line for it."""
        del progress, counts
        return b""

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """The rest of the reply, and the line that reports why it ended, its counts and durations."""
        rest = [each for step in self._blocks.close() for each in self._shown(*step)]
        return b"".join(map(line, (*rest, {**self._part(), **self._ended(piece.finish_reason, counts)})))

    def end(self, counts: Counts) -> bytes:
        """Nothing: `finish` ends the stream."""
        del counts
        return b""

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last line of a stream that failed."""
        del status
        return line(error_object(body))

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The reply to a request that does not stream."""
        (choice,) = choices
        blocks = blocks_of(choice.parts)
        texts = {kind: "".join(block.text for block in blocks if block.kind == kind) for kind in ("text", "reasoning")}
        calls = [_call(block, n) for n, block in enumerate(block for block in blocks if block.kind == "call")]
        body = self._part(content=texts["text"], thinking=texts["reasoning"], calls=calls)
        if self._shows_logprobs:
            body["logprobs"] = self._logprobs(choice.tokens)
        return to_json({**body, **self._ended(choice.finish_reason, counts)})

    def _shown(self, step: Step, block: Block, text: str) -> list[dict[str, Any]]:
        """The stream's lines for one change of a block."""
        if block.kind == "call":
            number = sum(each.kind == "call" for each in self._blocks.done) - 1
            return [self._part(calls=[_call(block, number)])] if step == "close" else []
        if step != "more":
            return []
        return [self._part(content=text) if block.kind == "text" else self._part(thinking=text)]

    def _part(
        self, *, content: str = "", thinking: str = "", calls: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        return _object(self._kind, self._model, content, thinking, calls)

    def _ended(self, reason: str | None, counts: Counts) -> dict[str, Any]:
        """The final fields. Clients divide by durations, so none is 0. `load_duration`: the time until the request's
        first step."""
        usage, timings = counts.usage, counts.timings
        total_s = time.monotonic() - self._started
        return {
            "done": True,
            "done_reason": _REASONS[reason or "stop"],
            "total_duration": _ns(total_s),
            "load_duration": _ns(total_s - timings.prompt_s - timings.predicted_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _ns(timings.prompt_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _ns(timings.predicted_s),
        }

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> list[dict[str, Any]]:
        return [
            {
                **self._logprob(token.token_id, token.scores.logprob),
                "top_logprobs": [self._logprob(token_id, logprob) for token_id, logprob in token.scores.top],
            }
            for token in tokens
            if token.scores is not None
        ]

    def _logprob(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._spelling.token_bytes(token_id)
        return {"token": self._spelling.replaced(token_id), "logprob": logprob, "bytes": list(raw)}


def _object(
    kind: Kind, model: str, content: str = "", thinking: str = "", calls: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A part of a reply. Fields without a value are omitted, except for the text."""
    head = {"model": model, "created_at": written_time()}
    more = {**({"thinking": thinking} if thinking else {}), **({"tool_calls": calls} if calls else {})}
    if kind == "generate":
        return {**head, "response": content, **more, "done": False}
    return {**head, "message": {"role": "assistant", "content": content, **more}, "done": False}


def _call(block: Block, number: int) -> dict[str, Any]:
    function = {"index": number, "name": block.name, "arguments": block.arguments}
    return {"id": block.call_id, "function": function}


def _ns(seconds: float) -> int:
    return max(1, round(seconds * _NS_PER_S))
