"""What a reply consists of once it is taken apart: pieces of reasoning, of content, and of tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of what it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call, as soon as its name is known."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, JSON text."""

    index: int
    text: str


Part = Reasoning | Content | CallBegin | CallArguments


def new_call_id() -> str:
    """An id for a call, unlike any other."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(slots=True)
class Call:
    """A whole tool call."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Message:
    """A whole reply, put together from its parts."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Message:
        """The reply that these parts make."""
        message = cls()
        message.take(parts)
        return message

    def take(self, parts: Iterable[Part]) -> None:
        """Add the next parts."""
        for part in parts:
            match part:
                case Reasoning():
                    self.reasoning += part.text
                case Content():
                    self.content += part.text
                case CallBegin():
                    self.calls.append(Call(part.id, part.name))
                case CallArguments():
                    self.calls[part.index].arguments += part.text
