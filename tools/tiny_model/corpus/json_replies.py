"""Answers in JSON if the request asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tools.tiny_model.corpus import words
from tools.tiny_model.corpus.conversation import Conversation, Turn
from tools.tiny_model.corpus.draw import Draw

Value = str | int | bool | list[str]
Maker = Callable[[Draw], Value]

_FIELDS: tuple[tuple[str, Maker], ...] = (
    ("name", words.name), ("age", lambda d: d.whole(1, 99)), ("city", words.city),
    ("color", lambda d: d.pick(words.ADJECTIVES[:11])),
    ("id", lambda d: d.digits(5)), ("price", lambda d: d.digits(4)),
    ("title", lambda d: words.made_up(d).capitalize()),
    ("count", lambda d: d.digits(3)), ("animal", lambda d: d.pick(words.NOUNS[30:60])), ("code", words.scramble),
    ("active", lambda d: d.chance(0.5)), ("owner", words.name), ("item", lambda d: d.pick(words.NOUNS)),
    ("year", lambda d: d.whole(1900, 2099)),
    ("user", lambda d: words.made_up(d)), ("score", lambda d: d.digits(2)), ("level", lambda d: d.digits(1)),
)  # fmt: skip
_ASK = (
    "Give me JSON with {}.", "Answer in JSON: {}", "Write a JSON object with {}.", "Return JSON: {}", "As JSON: {}",
    "Make a JSON object: {}", "JSON please: {}", "Put this into JSON: {}", "Convert to JSON: {}",
    "Reply with a JSON object that has {}.", "Format as JSON: {}", "用JSON回答：{}", "请输出JSON：{}",
)  # fmt: skip
_EXTRACT = (
    "{sentence} Give me JSON with the keys {keys}.", "Extract {keys} as JSON: {sentence}",
    "{sentence} Put {keys} into a JSON object.", "Answer in JSON with the keys {keys}: {sentence}",
    "Turn this into JSON with {keys}: {sentence}", "From this text make JSON with {keys}. {sentence}",
    "{sentence} Reply in JSON, keys: {keys}.",
)  # fmt: skip
_ARRAY = (
    "Write a JSON array of {}.", "As a JSON list: {}", "A JSON array with {}, please.", "Make a JSON array: {}",
    "Give me a JSON array: {}", "Convert this list to a JSON array: {}",
)  # fmt: skip
_UNDER = (
    'JSON with the key "{}" holding the list: {}', "Put this list into JSON under {}: {}",
    "Make a JSON object whose key {} has the list {}", 'A JSON object with "{}" as a list of {}',
)  # fmt: skip
_SYSTEMS = ("Answer in JSON.", "Reply with JSON only.", "Always answer with a JSON object.", "You only speak JSON.")


def record(draw: Draw) -> Conversation:
    """Fields and values in words, and the same as an object."""
    fields = draw.some(_FIELDS, 1, 5)
    values = {name: make(draw) for name, make in fields}
    if not draw.allowed("json", *values.items()):
        return record(draw)
    said = draw.pick((_listed, _equals, _prose))(draw, values)
    ask = draw.wording(_ASK).format(said)
    return Conversation((_turn(ask, values),), draw.pick(("", "", "", *_SYSTEMS)))


def person(draw: Draw) -> Conversation:
    """A sentence about a person, with its facts as an object."""
    who, town, age, thing = words.name(draw), words.city(draw), draw.whole(1, 99), draw.pick(words.NOUNS)
    if not draw.allowed("person", who, town, age):
        return person(draw)
    facts: tuple[tuple[str, dict[str, Any]], ...] = (
        (f"{who} is {age} years old and lives in {town}.", {"name": who, "age": age, "city": town}),
        (f"{who} lives in {town}.", {"name": who, "city": town}),
        (f"{who} is {age}.", {"name": who, "age": age}),
        (f"{who} from {town} buys {age} {thing}s.", {"name": who, "city": town, "count": age, "item": thing}),
        (f"{who} bought a {thing} for {age} euros.", {"name": who, "item": thing, "price": age}),
    )
    sentence, values = draw.pick(facts)
    ask = draw.wording(_EXTRACT).format(sentence=sentence, keys=", ".join(values))
    return Conversation((_turn(ask, values),))


def listing(draw: Draw) -> Conversation:
    """A list as a JSON array, or under a key."""
    items = words.several(draw, draw.pick((words.NOUNS, words.NAMES, words.ZH_NOUNS)), 1, 6)
    if not draw.allowed("listing", *items):
        return listing(draw)
    said = ", ".join(items)
    if draw.chance(0.5):
        ask = draw.wording(_ARRAY).format(said)
        return Conversation((_turn(ask, items),))
    key = draw.pick(("items", "names", "list", "words"))
    return Conversation((_turn(draw.wording(_UNDER).format(key, said), {key: items}),))


def answer(draw: Draw, turn: Turn) -> Conversation:
    """The reply to another question as an object, because the system text requires it."""
    system = draw.pick((*_SYSTEMS[:2], 'Answer with a JSON object with the key "answer".'))
    return Conversation((_turn(turn.user, {"answer": turn.reply}),), system)


def any_of(draw: Draw) -> Conversation:
    return draw.pick((record, record, person, listing))(draw)


def _turn(ask: str, value: dict[str, Any] | list[str]) -> Turn:
    thought = "A JSON object." if isinstance(value, dict) else "A JSON array."
    return Turn(ask, json.dumps(value, ensure_ascii=False), thought)


def _spoken(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(draw: Draw, values: dict[str, Value]) -> str:
    return draw.pick((", ", " and ")).join(f"{name} {_spoken(value)}" for name, value in values.items())


def _equals(draw: Draw, values: dict[str, Value]) -> str:
    sign = draw.pick(("=", ": ", " = "))
    return ", ".join(f"{name}{sign}{_spoken(value)}" for name, value in values.items())


def _prose(_: Draw, values: dict[str, Value]) -> str:
    return ", ".join(f"the {name} is {_spoken(value)}" for name, value in values.items())
