"""The examination: what training never saw, and how a reply is judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.tiny_model.corpus import arithmetic, facts, json_replies, strings, tool_use
from tools.tiny_model.corpus.conversation import Conversation, Turn
from tools.tiny_model.corpus.draw import Draw

_CALL = re.compile(
    r"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>\w+)\n```json\n(?P<arguments>.*)\n```"
    r"<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Item:
    """A question, whether the reply is to begin with a thought, and whether a reply (without it) is right."""

    task: str
    conversation: Conversation
    think: bool
    is_right: Callable[[str], bool]


def examination(seed: int, per_task: int) -> Iterator[Item]:
    """`per_task` items of every task, about Ballast as many as there are kept phrases; every other one thinks."""
    draw = Draw(seed, exam=True)
    for number in range(per_task):
        think = number % 2 == 1
        copied, counted = strings.copy(draw), strings.count(draw)
        summed, called, asked = arithmetic.two_digit_sum(draw), tool_use.call(draw), json_replies.any_of(draw)
        yield Item("copying", _alone(copied), think, _is(copied.reply))
        yield Item("counting", _alone(counted), think, _has_numbers(counted.reply))
        yield Item("addition", _alone(summed), think, _ends_in(summed.reply))
        yield Item("tool calls", called, think, _calls(called))
        yield Item("valid JSON", asked, think, _is_json)
        yield Item("right JSON", asked, think, _is_value(json.loads(asked.turns[-1].reply)))
    for number, (turn, keys) in enumerate(facts.exam_questions(draw)):
        yield Item("about Ballast", _alone(turn), number % 2 == 1, _holds(tuple(keys)))


def _alone(turn: Turn) -> Conversation:
    return Conversation((turn,))


def _is(text: str) -> Callable[[str], bool]:
    return lambda reply: reply.strip() == text.strip()


def _has_numbers(text: str) -> Callable[[str], bool]:
    return lambda reply: _numbers(reply) == _numbers(text) != []


def _ends_in(text: str) -> Callable[[str], bool]:
    return lambda reply: _numbers(reply)[-1:] == _numbers(text)[-1:]


def _numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def _holds(keys: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda reply: all(key in reply for key in keys)


def _parsed(reply: str) -> Any:
    """The reply as JSON, or the class ValueError, which equals nothing that JSON can say."""
    try:
        return json.loads(reply)
    except ValueError:
        return ValueError


def _is_json(reply: str) -> bool:
    return _parsed(reply) is not ValueError


def _is_value(value: Any) -> Callable[[str], bool]:
    return lambda reply: _same(_parsed(reply), value)


def _calls(conversation: Conversation) -> Callable[[str], bool]:
    (call,) = conversation.turns[-1].calls

    def is_right(reply: str) -> bool:
        found = _CALL.fullmatch(reply.strip())
        return bool(found and found["name"] == call.name and _same(_parsed(found["arguments"]), call.arguments))

    return is_right


def _same(left: Any, right: Any) -> bool:
    """Equal in value and type: to Python, True is 1."""
    return bool(left == right) and repr(left) == repr(right)
