"""Replies of OpenAI's Responses API: a response made of items, or the numbered events that build it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ballast.wire.client_tools import CalledTool, custom_input
from ballast.wire.content_blocks import Block, Blocks, Step, blocks_of
from ballast.wire.json_text import named_event, to_json
from ballast.wire.openai.logprobs import Spelling, TokenBytes
from ballast.wire.piece import Piece, Whole
from ballast.wire.responses.logprobs import TextScores
from ballast.wire.responses.request import ResponsesRequest
from ballast.wire.usage import Counts, Progress, Usage

ItemStatus = Literal["in_progress", "completed", "incomplete"]

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_COMPLETED: ItemStatus = "completed"
_FUNCTION = CalledTool("")


class ResponsesReply:
    """A response, streamed or whole."""

    def __init__(
        self,
        reply_id: str,
        created: int,
        model: str,
        body: ResponsesRequest,
        called: Mapping[str, CalledTool],
        token_bytes: TokenBytes,
    ) -> None:
        """`called`: the client's names of tools that have another name for the model."""
        self._scores = TextScores(Spelling(token_bytes)) if body.shows_logprobs else None
        self._id = reply_id
        self._called = called
        self._head = {"id": reply_id, "object": "response", "created_at": created, "model": model, **_echoed(body)}
        self._blocks = Blocks()
        self._num_events = 0

    def opening(self, counts: Counts) -> bytes:
        """The events that start the response, without items."""
        del counts
        response = {**self._head, **_state("in_progress"), "output": []}
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, piece: Piece, counts: Counts) -> bytes:
        """The events for a piece of the reply."""
        del counts
        if self._scores is not None:
            self._scores.take(piece.tokens)
        return b"".join(self._block_events(*step, _COMPLETED) for step in self._blocks.take(piece.parts))

    def progress(self, progress: Progress, counts: Counts) -> bytes:
        """Nothing: the API has no event for it."""
        del progress, counts
        return b""

    def finish(self, piece: Piece, counts: Counts) -> bytes:
        """The events that close the last item, and the one with the complete response."""
        status = _final_status(piece.finish_reason)
        frames = b"".join(self._block_events(*step, status) for step in self._blocks.close())
        response = self._response(self._blocks.done, piece.finish_reason, counts.usage)
        return frames + self._event(f"response.{response['status']}", response=response)

    def end(self, counts: Counts) -> bytes:
        """Nothing: `finish` has sent the last event."""
        del counts
        return b""

    def error(self, status: int, body: Mapping[str, Any]) -> bytes:
        """The last event of a stream that failed."""
        del status
        failure = {"code": "server_error", "message": body["error"]["message"]}
        response = {**self._head, **_state("failed"), "error": failure, "output": []}
        return self._event("response.failed", response=response)

    def whole(self, choices: Sequence[Whole], counts: Counts) -> bytes:
        """The response for a request that does not stream."""
        (choice,) = choices
        if self._scores is not None:
            self._scores.take(choice.tokens)
        return to_json(self._response(blocks_of(choice.parts), choice.finish_reason, counts.usage))

    def _response(self, blocks: Sequence[Block], reason: str | None, usage: Usage) -> dict[str, Any]:
        status = _final_status(reason)
        items = [self._item(block, status if block is blocks[-1] else _COMPLETED) for block in blocks]
        state = _state(status, None if status == _COMPLETED else {"reason": "max_output_tokens"})
        return {**self._head, **state, "output": items, "usage": usage_to_wire(usage)}

    def _block_events(self, step: Step, block: Block, text: str, final_status: ItemStatus) -> bytes:
        """The events of one step. `final_status` is the item's status once its block is closed."""
        at = {"item_id": self._item_id(block), "output_index": block.index}
        match step:
            case "open":
                item = self._item(block, "in_progress")
                begun = self._event("response.output_item.added", output_index=block.index, item=item)
                return begun + self._part_event("added", block, at)
            case "more" if self._is_custom(block):
                return b""  # its text is complete only when its arguments are
            case "more":
                return self._delta(block, at, text)
            case "close" if self._is_custom(block):
                given = custom_input(block.text)
                item = self._item(block, final_status)
                return (
                    self._event("response.custom_tool_call_input.delta", **at, delta=given)
                    + self._event("response.custom_tool_call_input.done", **at, input=given)
                    + self._event("response.output_item.done", output_index=block.index, item=item)
                )
            case "close":
                # The tokens that ended the text have no text.
                rest = self._delta(block, at, "") if block.kind == "text" and self._has_new_scores else b""
                done = self._event(
                    f"{_event_prefix(block)}.done", **at, **_content_index(block), **self._done_fields(block)
                )
                item = self._item(block, final_status)
                part = self._part_event("done", block, at)
                ended = self._event("response.output_item.done", output_index=block.index, item=item)
                return rest + done + part + ended

    def _delta(self, block: Block, at: dict[str, Any], text: str) -> bytes:
        more: dict[str, Any] = {"logprobs": self._new_scores()} if block.kind == "text" else {}
        return self._event(f"{_event_prefix(block)}.delta", **at, **_content_index(block), delta=text, **more)

    def _part_event(self, name: str, block: Block, at: dict[str, Any]) -> bytes:
        if block.kind == "call":
            return b""
        return self._event(f"response.content_part.{name}", **at, **_content_index(block), part=self._part(block))

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{uuid.uuid5(uuid.NAMESPACE_OID, f'{self._id}/{block.index}').hex}"

    def _item(self, block: Block, status: ItemStatus) -> dict[str, Any]:
        head = {"id": self._item_id(block), "status": status}
        content = [] if status == "in_progress" else [self._part(block)]
        match block.kind:
            case "reasoning":
                return {"type": "reasoning", **head, "summary": [], "content": content}
            case "text":
                return {"type": "message", **head, "role": "assistant", "content": content}
            case "call":
                tool = self._called.get(block.name, CalledTool(block.name))
                call = {"call_id": block.call_id, "name": tool.name}
                if tool.namespace is not None:
                    call["namespace"] = tool.namespace
                if tool.is_custom:
                    given = "" if status == "in_progress" else custom_input(block.text)
                    return {"type": "custom_tool_call", **head, **call, "input": given}
                return {"type": "function_call", **head, **call, "arguments": block.text}

    @property
    def _has_new_scores(self) -> bool:
        return self._scores is not None and self._scores.has_new

    def _new_scores(self) -> list[dict[str, Any]]:
        return [] if self._scores is None else self._scores.new()

    def _all_scores(self) -> list[dict[str, Any]]:
        return [] if self._scores is None else self._scores.all()

    def _done_fields(self, block: Block) -> dict[str, Any]:
        match block.kind:
            case "reasoning":
                return {"text": block.text}
            case "text":
                return {"text": block.text, "logprobs": self._all_scores()}
            case "call":
                return {"name": self._called.get(block.name, CalledTool(block.name)).name, "arguments": block.text}

    def _part(self, block: Block) -> dict[str, Any]:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": block.text}
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": self._all_scores()}

    def _is_custom(self, block: Block) -> bool:
        return block.kind == "call" and self._called.get(block.name, _FUNCTION).is_custom

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(name, {"sequence_number": number, **fields})


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """The `usage` object."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _echoed(body: ResponsesRequest) -> dict[str, Any]:
    """The fields that a response repeats from its request."""
    text = body.text.model_dump(exclude_none=True) if body.text else {}
    reasoning = body.reasoning
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "background": False,
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        **({"top_logprobs": body.top_logprobs} if body.top_logprobs is not None else {}),
        **({"user": body.user} if isinstance(body.user, str) else {}),
    }


def _final_status(reason: str | None) -> ItemStatus:
    """The status of a response that ended for `reason`, and of its last item."""
    return "incomplete" if reason == "length" else _COMPLETED


def _state(status: str, details: dict[str, str] | None = None) -> dict[str, Any]:
    return {"status": status, "error": None, "incomplete_details": details}


def _event_prefix(block: Block) -> str:
    kinds = {"reasoning": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}
    return f"response.{kinds[block.kind]}"


def _content_index(block: Block) -> dict[str, int]:
    return {} if block.kind == "call" else {"content_index": 0}
