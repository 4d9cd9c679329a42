"""A reply as a sequence of blocks of reasoning, text and tool calls, as Anthropic's API and OpenAI's Responses API
stream them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from ballast.text.messages import UNPARSED
from ballast.text.reply_parts import CallArguments, CallBegin, Content, Part, Reasoning

BlockKind = Literal["reasoning", "text", "call"]
Step = Literal["open", "more", "close"]


@dataclass(slots=True)
class Block:
    """One block, as generated so far."""

    index: int
    kind: BlockKind
    text: str = ""
    """The text; for a call, its arguments."""
    call_id: str = ""
    name: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """A call's arguments as an object. Text that is not a JSON object is stored under UNPARSED."""
        try:
            value = orjson.loads(self.text)
        except orjson.JSONDecodeError:
            value = None
        return value if isinstance(value, dict) else {UNPARSED: self.text}


class Blocks:
    """Turns the parts of one reply into blocks."""

    def __init__(self) -> None:
        self.done: list[Block] = []
        self._open: Block | None = None

    @property
    def has_calls(self) -> bool:
        """Whether any block is a tool call."""
        return any(block.kind == "call" for block in self.done) or (
            self._open is not None and self._open.kind == "call"
        )

    def take(self, parts: Iterable[Part]) -> Iterator[tuple[Step, Block, str]]:
        """Add parts. Yields (step, block, new text) for each change of a block."""
        for part in parts:
            kind = _kind(part)
            if self._open is None or self._open.kind != kind or isinstance(part, CallBegin):
                yield from self.close()
                self._open = Block(len(self.done), kind)
                if isinstance(part, CallBegin):
                    self._open.call_id, self._open.name = part.id, part.name
                yield "open", self._open, ""
            if not isinstance(part, CallBegin):
                self._open.text += part.text
                yield "more", self._open, part.text

    def close(self) -> Iterator[tuple[Step, Block, str]]:
        """Close the open block, if there is one."""
        if self._open is not None:
            block, self._open = self._open, None
            self.done.append(block)
            yield "close", block, ""


def blocks_of(parts: Iterable[Part]) -> list[Block]:
    """The blocks of a complete reply."""
    blocks = Blocks()
    for _ in (*blocks.take(parts), *blocks.close()):
        pass
    return blocks.done


def _kind(part: Part) -> BlockKind:
    match part:
        case Reasoning():
            return "reasoning"
        case Content():
            return "text"
        case CallBegin() | CallArguments():
            return "call"
