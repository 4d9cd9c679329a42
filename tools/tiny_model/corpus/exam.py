"""The evaluation: items that training never saw, and how a reply is graded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.tiny_model.corpus import arithmetic, facts, json_replies, memory, strings, tool_use
from tools.tiny_model.corpus.conversation import Call, Conversation, Turn
from tools.tiny_model.corpus.draw import Draw
from tools.tiny_model.corpus.tool_library import is_everyday


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's answer without its reasoning: a text, or tool calls."""

    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """A question, whether the reply must begin with reasoning, and a check of the reply."""

    task: str
    conversation: Conversation
    think: bool
    is_right: Callable[[Reply], bool]


def examination(seed: int, per_task: int) -> Iterator[Item]:
    """`per_task` items of every task, and one for each kept phrase about Ballast. Every other item has reasoning.

    Each task comes twice: with values that training never saw, and also with wordings that it never saw. Tools come in
    two more variants with new names: generated tools with known wordings, and everyday tools whose every wording is
    new.
    """
    for new_words in (False, True):
        draw, texts = Draw(seed, exam=True, new_words=new_words), set[str]()
        for number in range(per_task):
            for task, conversation, is_right in _tasks(draw, texts):
                yield Item(f"{task}, new words" if new_words else task, conversation, number % 2 == 1, is_right)
    draw = Draw(seed, exam=True, new_tools=True)
    for number in range(per_task):
        for task, everyday in (("tool calls, new tools", False), ("tool calls, new everyday tools", True)):
            called = _call_of(draw, everyday=everyday)
            yield Item(task, called, number % 2 == 1, _calls(called.turns[-1].calls))
    for number, (turn, keys) in enumerate(facts.exam_questions(Draw(seed, exam=True))):
        yield Item("about Ballast", _alone(turn), number % 2 == 1, _holds(tuple(keys)))


def _call_of(draw: Draw, *, everyday: bool) -> Conversation:
    while True:
        called = tool_use.call(draw)
        if is_everyday(called.turns[-1].calls[0].name) == everyday:
            return called


def _tasks(draw: Draw, texts: set[str]) -> Iterator[tuple[str, Conversation, Callable[[Reply], bool]]]:
    """One question of each task. `texts` are the texts copied so far; no text is used twice."""
    copied, counted, ordered, summed = (
        make(draw) for make in (strings.copy, strings.count, strings.sort, arithmetic.two_digit_sum)
    )
    while copied.reply in texts:
        copied = strings.copy(draw)
    texts.add(copied.reply)
    yield "copying", _alone(copied), _is(copied.reply)
    yield "counting", _alone(counted), _has_numbers(counted.reply)
    yield "sorting", _alone(ordered), _is(ordered.reply)
    yield "addition", _alone(summed), _ends_in(summed.reply)
    called, asked = tool_use.call(draw), json_replies.any_of(draw)
    yield "tool calls", called, _calls(called.turns[-1].calls)
    yield "valid JSON", asked, _is_json
    yield "right JSON", asked, _is_value(json.loads(asked.turns[-1].reply))
    told = memory.remembered(draw, strings.copy)
    while len(told) == 1:
        told = memory.remembered(draw, strings.copy)
    yield "remembering", Conversation(tuple(told)), _is(told[-1].reply)


def _alone(turn: Turn) -> Conversation:
    return Conversation((turn,))


def _is(text: str) -> Callable[[Reply], bool]:
    return lambda reply: reply.text.strip() == text.strip()


def _has_numbers(text: str) -> Callable[[Reply], bool]:
    return lambda reply: _numbers(reply.text) == _numbers(text) != []


def _ends_in(text: str) -> Callable[[Reply], bool]:
    return lambda reply: _numbers(reply.text)[-1:] == _numbers(text)[-1:]


def _numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def _holds(keys: tuple[str, ...]) -> Callable[[Reply], bool]:
    return lambda reply: all(key in reply.text for key in keys)


def _parsed(text: str) -> Any:
    """The text as JSON, or the class ValueError, which equals no JSON value."""
    try:
        return json.loads(text)
    except ValueError:
        return ValueError


def _is_json(reply: Reply) -> bool:
    return _parsed(reply.text) is not ValueError


def _is_value(value: Any) -> Callable[[Reply], bool]:
    return lambda reply: _same(_parsed(reply.text), value)


def _calls(calls: tuple[Call, ...]) -> Callable[[Reply], bool]:
    """The right calls and no other text."""

    def is_right(reply: Reply) -> bool:
        return (
            not reply.text.strip()
            and [call.name for call in reply.calls] == [call.name for call in calls]
            and all(_same(left.arguments, right.arguments) for left, right in zip(reply.calls, calls, strict=True))
        )

    return is_right


def _same(left: Any, right: Any) -> bool:
    """Equal in value and type. In Python, True equals 1."""
    return bool(left == right) and repr(left) == repr(right)
