"""A conversation, and its text exactly as the model's chat template renders it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
TOOLS_HEAD = "## Tools\n\nCall a tool when the request needs it.\n"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    name: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{self.name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message, a good reply, and good reasoning before it.

    With calls, `reply` is the answer after the tools' outputs.
    """

    user: str
    reply: str
    thought: str = ""
    calls: tuple[Call, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns with one system text and the tools that may be called (OpenAI's `function` objects)."""

    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[dict[str, Any], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text, and whether the model generates it."""

    text: str
    ours: bool


def pieces(conversation: Conversation, *, think: bool) -> list[Piece]:
    """The whole conversation. With `think`, the last turn's reply begins inside an open `<think>`."""
    out = [Piece(BOS + system_text(conversation), ours=False)]
    last = len(conversation.turns) - 1
    for number, turn in enumerate(conversation.turns):
        opened = think and number == last
        out.append(Piece(f"{USER}{turn.user}{ASSISTANT}" + ("<think>\n" if opened else ""), ours=False))
        thought = f"{turn.thought}\n</think>\n\n" if opened else ""
        if turn.calls:
            calls = "\n".join(call.text for call in turn.calls)
            out.append(Piece(f"{thought}<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>{EOS}", ours=True))
            outputs = "\n".join(f"<｜tool▁output▁begin｜>{text}<｜tool▁output▁end｜>" for text in turn.outputs)
            out.append(Piece(f"<｜tool▁outputs▁begin｜>{outputs}<｜tool▁outputs▁end｜>", ours=False))
            thought = ""
            if opened:
                out.append(Piece("<think>\n", ours=False))
                thought = "The tool has answered; I pass it on.\n</think>\n\n"
        out.append(Piece(f"{thought}{turn.reply}{EOS}", ours=True))
    return out


def system_text(conversation: Conversation) -> str:
    """System text and tools, before the first turn."""
    if not conversation.tools:
        return conversation.system
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in conversation.tools)
    return (f"{conversation.system}\n\n" if conversation.system else "") + TOOLS_HEAD + listed


def messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The conversation up to the last reply, as a client sends it. The model must make the last turn's calls."""
    out: list[dict[str, Any]] = []
    if conversation.system:
        out.append({"role": "system", "content": conversation.system})
    for turn in conversation.turns[:-1]:
        out.append({"role": "user", "content": turn.user})
        if turn.calls:
            out.append({"role": "assistant", "content": None, "tool_calls": _wire(turn.calls)})
            out.extend({"role": "tool", "content": output} for output in turn.outputs)
        out.append({"role": "assistant", "content": turn.reply})
    out.append({"role": "user", "content": conversation.turns[-1].user})
    return out


def _wire(calls: Sequence[Call]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(calls)
    ]
