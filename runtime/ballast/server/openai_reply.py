"""What clients receive: OpenAI's reply bodies and event-stream frames, as bytes.

A stream's chunks differ in a few bytes, so each reply lays out the rest once and a token costs little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson

from ballast import __version__

SYSTEM_FINGERPRINT = f"ballast-{__version__}"

DONE = b"data: [DONE]\n\n"

FinishReason = Literal["stop", "length"]


def to_json(value: Any) -> bytes:
    """JSON that survives clients which split lines the Unicode way: U+0085, U+2028 and U+2029 are escaped."""
    data = orjson.dumps(value)
    return (
        data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029").replace(b"\xc2\x85", b"\\u0085")
    )


def error_body(
    message: str, *, error_type: str, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    """The envelope of every error."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def event(value: Any) -> bytes:
    """One frame of an event stream."""
    return b"data: " + to_json(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def to_wire(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Reply(Protocol):
    """One reply in one of OpenAI's two shapes: frames for a stream, or one body."""

    def opening(self) -> bytes:
        """Frames before the first text."""

    def text(self, text: str) -> bytes:
        """The frame of a piece of text."""

    def finish(self, reason: FinishReason) -> bytes:
        """The frame that says why it ended."""

    def usage(self, usage: Usage) -> bytes:
        """The frame that says what it cost; without choices."""

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """The reply to a request that does not stream."""


class _Frames:
    """The frames of one stream: `head`, then a choice, then `tail`."""

    def __init__(self, head: Mapping[str, Any], *, include_usage: bool) -> None:
        self._head = dict(head)
        self._prefix = b"data: " + to_json(self._head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def cut(self, choice: Mapping[str, Any], at: str) -> tuple[bytes, bytes]:
        """Everything before and after the place in the frame of `choice` where `at` stands as a JSON string."""
        frame = self._prefix + to_json(choice) + self._tail
        before, after = frame.split(to_json(at))
        return before, after

    def frame(self, choice: Mapping[str, Any]) -> bytes:
        return self._prefix + to_json(choice) + self._tail

    def usage(self, usage: Usage) -> bytes:
        return event({**self._head, "choices": [], "usage": usage.to_wire()})


_HERE = "\x00here\x00"


class ChatReply:
    """A chat completion."""

    def __init__(self, reply_id: str, created: int, model: str, *, include_usage: bool) -> None:
        self._head = {"id": reply_id, "created": created, "model": model, "system_fingerprint": SYSTEM_FINGERPRINT}
        self._frames = _Frames({"object": "chat.completion.chunk", **self._head}, include_usage=include_usage)
        self._before, self._after = self._frames.cut(_chat_choice({"content": _HERE}), _HERE)

    def opening(self) -> bytes:
        """The role, once."""
        return self._frames.frame(_chat_choice({"role": "assistant", "content": ""}))

    def text(self, text: str) -> bytes:
        """A piece of content."""
        return self._before + to_json(text) + self._after

    def finish(self, reason: FinishReason) -> bytes:
        """An empty delta with the reason."""
        return self._frames.frame(_chat_choice({}, reason))

    def usage(self, usage: Usage) -> bytes:
        """The usage chunk."""
        return self._frames.usage(usage)

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """A `chat.completion` object."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return to_json({"object": "chat.completion", **self._head, "choices": [choice], "usage": usage.to_wire()})


class TextReply:
    """A text completion."""

    def __init__(self, reply_id: str, created: int, model: str, *, include_usage: bool) -> None:
        self._head = {
            "id": reply_id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        self._frames = _Frames(self._head, include_usage=include_usage)
        self._before, self._after = self._frames.cut(_text_choice(_HERE), _HERE)

    def opening(self) -> bytes:
        """Nothing: text completions have no role."""
        return b""

    def text(self, text: str) -> bytes:
        """A piece of text."""
        return self._before + to_json(text) + self._after

    def finish(self, reason: FinishReason) -> bytes:
        """Empty text with the reason."""
        return self._frames.frame(_text_choice("", reason))

    def usage(self, usage: Usage) -> bytes:
        """The usage chunk."""
        return self._frames.usage(usage)

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """A `text_completion` object."""
        return to_json({**self._head, "choices": [_text_choice(text, reason)], "usage": usage.to_wire()})


def _chat_choice(delta: Mapping[str, Any], reason: FinishReason | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _text_choice(text: str, reason: FinishReason | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
