"""Replies of OpenAI's API as bytes: whole bodies, and frames of event streams.

The chunks of a stream differ in a few bytes only, so the rest is encoded once per choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ballast.text.reply_parts import Call, CallArguments, CallBegin, Content, Message, Part, Reasoning
from ballast.version import __version__
from ballast.wire.client_tools import InputText, custom_input
from ballast.wire.json_text import event, to_json
from ballast.wire.openai.logprobs import (
    Spelling,
    TokenBytes,
    chat_logprobs,
    prompt_logprobs,
    text_logprobs,
)
from ballast.wire.piece import Piece, ScoredToken, Whole, WireFinishReason
from ballast.wire.usage import Counts, Progress

SYSTEM_FINGERPRINT = f"ballast-{__version__}"

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """The data that the client requests in addition to the text."""

    num_choices: int = 1
    logprobs: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    """With include_usage, every chunk has the usage so far."""
    timings_per_token: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    """Log probabilities show tokens as ids."""
    prompt_logprobs: bool = False
    prompt_ids: tuple[tuple[int, ...], ...] = ()
    """The token ids of each prompt, if requested."""

    @property
    def is_plain(self) -> bool:
        """Whether the frames of one choice differ only in their text."""
        return not (self.logprobs or self.continuous_usage or self.timings_per_token or self.token_ids)


class Format(Protocol):
    """The differences between OpenAI's two formats, chats and text completions."""

    object: str
    chunk_object: str
    opening: Mapping[str, Any] | None
    """Fields of the first frame of each choice; None: no such frame."""
    prompt_in_choice: bool
    """Whether each choice has the prompt's ids and scores, as in vLLM's text completions. Otherwise the reply has
    them."""

    def chunk(self, part: Part | None, index: int) -> dict[str, Any]:
        """The fields of a chunk for one part of choice `index`; `part` None: for a chunk without text."""

    def whole(self, choice: Whole) -> dict[str, Any]:
        """The fields of a complete choice."""

    def logprobs(self, tokens: Sequence[ScoredToken], spelling: Spelling) -> bytes:
        """A choice's log probabilities, as JSON."""


class ChatFormat:
    """Chat completions. `reasoning_fields` are the fields that carry the reasoning."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    opening: Mapping[str, Any] | None = {"delta": {"role": "assistant", "content": ""}}
    prompt_in_choice = False
    logprobs = staticmethod(chat_logprobs)

    def __init__(
        self, reasoning_fields: Sequence[str] = ("reasoning_content",), custom_tools: Collection[str] = ()
    ) -> None:
        """`custom_tools`: names of tools that are called with a text instead of arguments."""
        self._reasoning_fields = reasoning_fields
        self._custom_tools = custom_tools
        self._inputs: dict[tuple[int, int], InputText] = {}
        """For streamed calls of such tools, by choice and call."""

    def chunk(self, part: Part | None, index: int) -> dict[str, Any]:
        """A delta."""
        match part:
            case None:
                return {"delta": {}}
            case Content():
                return {"delta": {"content": part.text}}
            case Reasoning():
                return {"delta": dict.fromkeys(self._reasoning_fields, part.text)}
            case CallBegin() if part.name in self._custom_tools:
                self._inputs[index, part.index] = InputText()
                call = {"id": part.id, "type": "custom", "custom": {"name": part.name, "input": ""}}
            case CallArguments() if (text := self._inputs.get((index, part.index))) is not None:
                call = {"custom": {"input": text.push(part.text)}}
            case CallBegin():
                call = {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}}
            case CallArguments():
                call = {"function": {"arguments": part.text}}
        return {"delta": {"tool_calls": [{"index": part.index, **call}]}}

    def whole(self, choice: Whole) -> dict[str, Any]:
        """A message."""
        reply = Message.of(choice.parts)
        message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
        if not reply.content and (reply.reasoning or reply.calls):
            message["content"] = None
        if reply.reasoning:
            message |= dict.fromkeys(self._reasoning_fields, reply.reasoning)
        if reply.calls:
            message["tool_calls"] = [self._call(call) for call in reply.calls]
        return {"message": message}

    def _call(self, call: Call) -> dict[str, Any]:
        if call.name in self._custom_tools:
            custom = {"name": call.name, "input": custom_input(call.arguments)}
            return {"id": call.id, "type": "custom", "custom": custom}
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}


class TextFormat:
    """Text completions."""

    object = "text_completion"
    chunk_object = "text_completion"
    opening: Mapping[str, Any] | None = None
    prompt_in_choice = True
    logprobs = staticmethod(text_logprobs)

    def chunk(self, part: Part | None, index: int) -> dict[str, Any]:
        """More text."""
        del index
        return {"text": part.text if isinstance(part, Content) else ""}

    def whole(self, choice: Whole) -> dict[str, Any]:
        """The text."""
        return {"text": Message.of(choice.parts).content}


_PLACEHOLDER = "\x00here\x00"


class Reply:
    """One reply: frames for a stream, or one body."""

    def __init__(
        self, reply_id: str, created: int, model: str, format_: Format, shape: Shape, token_bytes: TokenBytes
    ) -> None:
        self.shape = shape
        self._format = format_
        self._token_bytes = token_bytes
        self._head = {"id": reply_id, "created": created, "model": model, "system_fingerprint": SYSTEM_FINGERPRINT}
        chunk_head = {"object": format_.chunk_object, **self._head}
        self._prefix = b"data: " + to_json(chunk_head)[:-1] + b',"choices":['
        self._chunk_head = chunk_head
        self._cuts: dict[int, tuple[bytes, bytes]] = {}
        self._begun: set[int] = set()
        """Choices whose prompt ids have been sent."""

    def opening(self, counts: Counts) -> bytes:
        """Frames before the first text, with the role of each choice."""
        fields = self._format.opening
        if fields is None:
            return b""
        ids = {"prompt_token_ids": self._prompt_ids(0)} if self.shape.prompt_ids else {}
        return b"".join(
            self._frame(index, fields, counts, more={} if index else ids) for index in range(self.shape.num_choices)
        )

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """The frames of a piece, without its finish reason; none if the piece has no content. The first one has the log
        probabilities and token ids."""
        token_ids = piece.token_ids if self.shape.token_ids else ()
        parts: Sequence[Part] = piece.parts or ((Content(""),) if piece.tokens or token_ids else ())
        if self.shape.is_plain:
            return b"".join(self._plain_frame(piece.index, part, counts) for part in parts)
        more = {"timings": counts.timings.to_wire()} if self.shape.timings_per_token else {}
        ids: dict[str, Any] = {"token_ids": token_ids} if token_ids else {}
        if self.shape.prompt_ids and self._format.prompt_in_choice and piece.index not in self._begun:
            self._begun.add(piece.index)
            ids["prompt_token_ids"] = self._prompt_ids(piece.index)
        return b"".join(
            self._frame(
                piece.index,
                self._format.chunk(part, piece.index) | ({} if n else ids),
                counts,
                tokens=() if n else piece.tokens,
                more=more,
            )
            for n, part in enumerate(parts)
        )

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """The frame with the progress of a prompt."""
        more = {"prompt_progress": progress.to_wire()}
        return self._frame(progress.index, self._format.chunk(None, progress.index), counts, more=more)

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """The frame with a choice's finish reason and the timings of the request so far."""
        more = {"timings": counts.timings.to_wire()}
        fields = {**self._format.chunk(None, piece.index), "stop_reason": piece.stop_reason}
        return self._frame(piece.index, fields, counts, reason=piece.finish_reason, more=more)

    def end(self, counts: Counts) -> bytes:
        """The last frames: the usage and the timings in a frame without choices, if requested, and the end of the
        stream."""
        if not self.shape.include_usage:
            return DONE
        costs = {"usage": counts.usage.to_wire(), "timings": counts.timings.to_wire()}
        return event({**self._chunk_head, "choices": [], **costs}) + DONE

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last frames of a stream that failed."""
        del status
        return event(body) + DONE

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The body of a reply that is not streamed."""
        ids = {}
        if self.shape.prompt_ids and not self._format.prompt_in_choice:
            ids = {"prompt_token_ids": self._prompt_ids(0)}
        head = to_json({"object": self._format.object, **self._head, **ids})
        scores = b"" if self._format.prompt_in_choice else self._prompt_scores(choices[0])
        tail = to_json({"usage": counts.usage.to_wire(), "timings": counts.timings.to_wire()})
        return b'%b%b,"choices":[%b],%b' % (head[:-1], scores, b",".join(map(self._whole_choice, choices)), tail[1:])

    def _whole_choice(self, choice: Whole) -> bytes:
        ids: dict[str, Any] = {"token_ids": choice.token_ids} if self.shape.token_ids else {}
        if self.shape.prompt_ids and self._format.prompt_in_choice:
            ids["prompt_token_ids"] = self._prompt_ids(choice.index)
        fields = {"index": choice.index, **self._format.whole(choice), **ids, "stop_reason": choice.stop_reason}
        body = to_json(fields)
        return b'%b%b,"logprobs":%b,"finish_reason":%b}' % (
            body[:-1],
            self._prompt_scores(choice) if self._format.prompt_in_choice else b"",
            self._logprobs(choice.tokens),
            to_json(choice.finish_reason),
        )

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> bytes:
        if not self.shape.logprobs:
            return b"null"
        return self._format.logprobs(tokens, self._spelling)

    @property
    def _spelling(self) -> Spelling:
        return Spelling(self._token_bytes, as_ids=self.shape.tokens_as_ids)

    def _prompt_scores(self, choice: Whole) -> bytes:
        """The field with the scores of the prompt, if requested."""
        if not self.shape.prompt_logprobs:
            return b""
        return b',"prompt_logprobs":' + prompt_logprobs(choice.prompt_scores, self._spelling)

    def _prompt_ids(self, index: int) -> tuple[int, ...]:
        """The token ids of a choice's prompt."""
        return self.shape.prompt_ids[index * len(self.shape.prompt_ids) // self.shape.num_choices]

    def _plain_frame(self, index: int, part: Part, counts: Counts) -> bytes:
        if not isinstance(part, Content):
            return self._frame(index, self._format.chunk(part, index), counts)
        before, after = self._cut(index, counts)
        return before + to_json(part.text) + after

    def _cut(self, index: int, counts: Counts) -> tuple[bytes, bytes]:
        """The bytes before and after the text in the frames of one choice."""
        if index not in self._cuts:
            # Search from the right: the client chooses the model's name, which may contain the placeholder.
            before, after = self._frame(index, self._format.chunk(Content(_PLACEHOLDER), index), counts).rsplit(
                to_json(_PLACEHOLDER), 1
            )
            self._cuts[index] = before, after
        return self._cuts[index]

    def _frame(
        self,
        index: int,
        fields: Mapping[str, Any],
        counts: Counts,
        *,
        tokens: Sequence[ScoredToken] = (),
        reason: WireFinishReason | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = to_json({"index": index, **fields})
        logprobs = self._logprobs(tokens) if tokens else b"null"
        after = dict(more or {})
        if self.shape.include_usage:
            after["usage"] = counts.usage.to_wire() if self.shape.continuous_usage else None
        tail = b"," + to_json(after)[1:] if after else b"}"
        return b'%b%b,"logprobs":%b,"finish_reason":%b}]%b\n\n' % (
            self._prefix,
            choice[:-1],
            logprobs,
            to_json(reason),
            tail,
        )
