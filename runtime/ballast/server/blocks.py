"""A reply as a sequence of blocks, reasoning, text and tool calls, which Anthropic and OpenAI's newer API stream one
after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ballast.text.reply_parts import CallArguments, CallBegin, Content, Part, Reasoning

BlockKind = Literal["reasoning", "text", "call"]
Step = Literal["open", "more", "close"]


@dataclass(slots=True)
class Block:
    """One block so far."""

    index: int
    kind: BlockKind
    text: str = ""
    """Of a call: its arguments."""
    call_id: str = ""
    name: str = ""


class Blocks:
    """Turns the parts of one reply into blocks."""

    def __init__(self) -> None:
        self.done: list[Block] = []
        self._open: Block | None = None

    @property
    def has_calls(self) -> bool:
        """Whether a tool was called."""
        return any(block.kind == "call" for block in self.done) or (
            self._open is not None and self._open.kind == "call"
        )

    def take(self, parts: Iterable[Part]) -> Iterator[tuple[Step, Block, str]]:
        """What happens to which block, and the text that it gets."""
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
        """End the block that is open, if one is."""
        if self._open is not None:
            block, self._open = self._open, None
            self.done.append(block)
            yield "close", block, ""


def blocks_of(parts: Iterable[Part]) -> list[Block]:
    """The blocks of a whole reply."""
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
