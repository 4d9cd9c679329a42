"""Replies of Anthropic's Messages API: messages made of blocks, named events, and the API's error envelope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ballast.wire.content_blocks import Block, Blocks, Step, blocks_of
from ballast.wire.json_text import named_event, to_json
from ballast.wire.piece import Piece, Whole
from ballast.wire.usage import Counts, Progress, Usage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_NOT_ENDED: Mapping[str, Any] = {"stop_reason": None, "stop_sequence": None, "stop_details": None, "container": None}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def model_page(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A page with all models, in the format of `model_info`."""
    return {"data": models, "has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}


def model_info(name: str, created: int, *, max_input_tokens: int, max_tokens: int) -> dict[str, Any]:
    """A model. `created`: Unix time, in seconds."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": max_input_tokens,
        "max_tokens": max_tokens,
        "capabilities": None,
    }


class AnthropicReply:
    """A message, streamed or whole."""

    def __init__(self, reply_id: str, model: str) -> None:
        self._head = {"id": reply_id, "type": "message", "role": "assistant", "model": model}
        self._blocks = Blocks()

    def opening(self, counts: Counts) -> bytes:
        """The event that starts the message, without content."""
        message = {**self._head, "content": [], **_NOT_ENDED, "usage": message_usage(counts.usage)}
        return _event("message_start", message=message)

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """More of the content."""
        del counts
        return b"".join(_block_event(*step) for step in self._blocks.take(piece.parts))

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """Nothing: the API has no event for it."""
        del progress, counts
        return b""

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """The events that close the last block and report why the message ended and its usage."""
        frames = b"".join(_block_event(*step) for step in self._blocks.close())
        delta = _stop_fields(piece.finish_reason, piece.stop, has_calls=self._blocks.has_calls)
        return frames + _event("message_delta", delta=delta, usage=usage_to_wire(counts.usage))

    def end(self, counts: Counts) -> bytes:
        """The last event of the stream."""
        del counts
        return _event("message_stop")

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last event of a stream that failed."""
        return _event("error", error=error_detail(status, body))

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The message for a request that does not stream."""
        (choice,) = choices
        blocks = blocks_of(choice.parts)
        content = [_whole_block(block) for block in blocks]
        stop_fields = _stop_fields(
            choice.finish_reason, choice.stop, has_calls=any(block.kind == "call" for block in blocks)
        )
        return to_json({**self._head, "content": content, **stop_fields, "usage": message_usage(counts.usage)})


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """The `usage` object, which counts cached prompt tokens separately."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": None,
    }


def message_usage(usage: Usage) -> dict[str, Any]:
    """The `usage` object of a whole message."""
    return {**usage_to_wire(usage), "cache_creation": None, "inference_geo": None, "service_tier": None}


def _stop_fields(reason: str | None, stop: str | None, *, has_calls: bool) -> dict[str, Any]:
    stop_reason = "stop_sequence" if stop is not None else _STOP_REASONS[reason or "stop"]
    stop_reason = "tool_use" if has_calls and stop_reason == "end_turn" else stop_reason
    return {**_NOT_ENDED, "stop_reason": stop_reason, "stop_sequence": stop}


def _block_event(step: Step, block: Block, text: str) -> bytes:
    match step:
        case "open":
            return _event("content_block_start", index=block.index, content_block=_begun_block(block))
        case "more":
            return _event("content_block_delta", index=block.index, delta=_delta(block, text))
        case "close":
            # The API ends reasoning with a signature, and some clients wait for it. Here the signature is empty.
            signed = {"type": "signature_delta", "signature": ""}
            is_reasoning = block.kind == "reasoning"
            last = _event("content_block_delta", index=block.index, delta=signed) if is_reasoning else b""
            return last + _event("content_block_stop", index=block.index)


def _begun_block(block: Block) -> dict[str, Any]:
    match block.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            # Anthropic's schema wants the key, with a list or null; @ai-sdk/anthropic wants no key or a list.
            return {"type": "text", "text": "", "citations": []}
        case "call":
            call = {"id": block.call_id, "name": block.name, "input": {}, "caller": {"type": "direct"}}
            return {"type": "tool_use", **call}


def _delta(block: Block, text: str) -> dict[str, str]:
    match block.kind:
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "text":
            return {"type": "text_delta", "text": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}


def _whole_block(block: Block) -> dict[str, Any]:
    begun = _begun_block(block)
    match block.kind:
        case "reasoning":
            return {**begun, "thinking": block.text}
        case "text":
            return {**begun, "text": block.text}
        case "call":
            return {**begun, "input": block.arguments}


def error_detail(status: int, body: Mapping[str, Any]) -> dict[str, str]:
    """The `error` object, made from an HTTP status and an error in OpenAI's envelope."""
    error = body.get("error") or {}
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": kind, "message": str(error.get("message") or "")}


def _event(name: str, /, **fields: Any) -> bytes:
    return named_event(name, fields)
