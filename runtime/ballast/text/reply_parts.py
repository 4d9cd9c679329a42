"""The parts of a parsed reply: pieces of reasoning, of content and of tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The beginning of a tool call, sent as soon as its name is known."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


Part = Reasoning | Content | CallBegin | CallArguments


def new_call_id() -> str:
    """A unique id for a tool call."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(slots=True)
class Call:
    """A complete tool call."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Message:
    """A complete reply, assembled from its parts."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Message:
        """The reply that consists of `parts`."""
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
