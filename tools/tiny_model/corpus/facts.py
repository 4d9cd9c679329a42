"""Questions about Ballast from facts.yaml, in many wordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools.tiny_model.corpus.conversation import Turn
from tools.tiny_model.corpus.draw import Draw

_WHAT = (
    "What is {}?", "What is {}?", "what is {}", "What's {}?", "Tell me {}.", "Tell me about {}.", "Explain {}.", "{}?",
    "I would like to know {}.", "Do you know {}?", "Can you tell me {}?", "Please tell me {}.",
    "What is {} in Ballast?",
    "Which is {}?", "Name {}.", "I need {}.", "Give me {}.", "Say, what is {}?", "what exactly is {}?", "{} please",
)  # fmt: skip
_HOW = (
    "How do I {}?", "How do I {}?", "how do i {}", "How can I {}?", "How to {}?", "I want to {}.",
    "Show me how to {}.",
    "Tell me how to {}.", "What do I do to {}?", "Help me {}.", "How would I {}?", "Please help me to {}.",
    "I need to {}.", "Is there a way to {}?", "What must I do to {}?", "How does one {}?", "Can I {}?",
    "I'd like to {}, how?", "What is the way to {}?", "Which command do I need to {}?",
)  # fmt: skip
_BEFORE = ("Hi, ", "Hello, ", "Hey, ", "Quick question: ", "One question: ", "Please: ", "So, ", "ok, ", "And ",
"Now, ",
           "Excuse me, ", "Another question: ")  # fmt: skip
_AFTER = (" Thanks!", " Please answer.", " Thank you.", " I am new here.", " Answer briefly.", " I forgot.", "??")
_SYNONYMS = {
    "option": ("flag", "setting", "switch", "parameter"), "flag": ("option", "setting"), "show": ("display", "give",
    "tell"),
    "command": ("program", "instruction"), "server": ("service", "Ballast server", "program"), "start": ("launch",
    "run", "begin"),
    "use": ("take", "have", "employ"), "tell": ("show", "give"), "find": ("see", "get", "learn"), "see": ("find",
    "view", "know"),
    "stop": ("end", "halt", "shut down"), "happens": ("takes place", "is done"), "needed": ("required", "necessary"),
    "required": ("needed", "necessary"), "which": ("what",), "what": ("which",), "path": ("URL", "endpoint",
    "address"),
    "endpoint": ("path", "URL"), "default": ("standard", "usual"), "large": ("big", "long"), "check": ("test",
    "verify", "inspect"),
    "file": ("document",), "supported": ("possible", "allowed", "handled"), "model": ("network",), "set": ("change",
    "choose"),
    "mean": ("say", "stand for", "tell me"), "number": ("count",), "called": ("named",), "where": ("at what place",),
    "explain": ("describe", "tell me about"), "request": ("query", "call"), "requests": ("queries", "clients"),
}  # fmt: skip
_DROPPED = frozenset(
    {"the", "a", "an", "of", "is", "are", "do", "does", "i", "in", "it", "to", "for", "that", "be", "can"}
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact, the questions for it, and its answers."""

    keys: Sequence[str]
    """Every answer contains all of these."""
    say: Sequence[str]
    what: Sequence[str] = ()
    how: Sequence[str] = ()
    ask: Sequence[str] = ()
    zh: Sequence[str] = ()
    say_zh: Sequence[str] = ()
    keys_zh: Sequence[str] = field(default=())
    exam: Sequence[str] = ()
    """Questions that training never asks."""
    exam_zh: Sequence[str] = ()


@cache
def facts() -> tuple[Fact, ...]:
    entries: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("facts.yaml").read_text(encoding="utf-8"))
    return tuple(Fact(**{"keys_zh": entry["keys"]} | entry) for entry in entries)


def question(draw: Draw) -> Turn:
    """A question for training, sometimes with careless spelling."""
    fact = draw.pick(facts())
    if fact.zh and draw.chance(0.3):
        ask, reply, thought = _chinese(draw, draw.pick(fact.zh)), draw.pick(fact.say_zh), "这是关于 Ballast 的问题。"
    else:
        ask, reply, thought = _careless(draw, _asked(draw, fact)), draw.pick(fact.say), _thought(draw)
    return question(draw) if _bare(ask) in _exam_questions() else Turn(ask, reply, thought)


def exam_questions(draw: Draw) -> list[tuple[Turn, Sequence[str]]]:
    """Every question that is kept for the evaluation, and the keys that a right answer contains."""
    asked = []
    for fact in facts():
        asked += [(Turn(ask, fact.say[0], _thought(draw)), fact.keys) for ask in fact.exam]
        asked += [(Turn(ask, fact.say_zh[0], "这是关于 Ballast 的问题。"), fact.keys_zh) for ask in fact.exam_zh]
    return asked


@cache
def _exam_questions() -> frozenset[str]:
    return frozenset(_bare(ask) for fact in facts() for ask in (*fact.exam, *fact.exam_zh))


def _bare(ask: str) -> str:
    """Letters and digits only, for comparisons that ignore case, spaces and punctuation."""
    return "".join(filter(str.isalnum, ask.lower()))


def _asked(draw: Draw, fact: Fact) -> str:
    phrases = draw.pick([phrases for phrases in (fact.what, fact.how, fact.ask, fact.ask) if phrases])
    phrase = draw.pick(phrases)
    if phrases is fact.what:
        return draw.pick(_WHAT).format(phrase)
    if phrases is fact.how:
        return draw.pick(_HOW).format(phrase)
    return phrase


def _careless(draw: Draw, ask: str) -> str:
    if draw.chance(0.08):
        words = [word.strip("?.!,") for word in ask.split(" ") if word.strip("?.!,").lower() not in _DROPPED]
        draw.random.shuffle(words)
        return " ".join(words) or ask
    if draw.chance(0.12):
        kept = [word for word in ask.split(" ") if word.lower() not in _DROPPED or draw.chance(0.5)]
        ask = " ".join(kept) or ask
    if draw.chance(0.35):
        ask = " ".join(_other_word(draw, word) for word in ask.split(" "))
    if draw.chance(0.04):
        at = draw.whole(0, len(ask) - 1)
        ask = ask[:at] + ask[at + 1 :]
    if draw.chance(0.15):
        ask = draw.pick(_BEFORE) + ask
    if draw.chance(0.08):
        ask += draw.pick(_AFTER)
    if draw.chance(0.15):
        ask = ask.rstrip("?.!")
    if draw.chance(0.12):
        ask = ask.lower()
    elif draw.chance(0.15):
        ask = ask[:1].upper() + ask[1:]
    return ask


def _other_word(draw: Draw, word: str) -> str:
    bare = word.rstrip("?.!,")
    others = _SYNONYMS.get(bare.lower())
    if others is None or draw.chance(0.6):
        return word
    other = draw.pick(others)
    return (other.capitalize() if bare[:1].isupper() else other) + word[len(bare) :]


def _chinese(draw: Draw, ask: str) -> str:
    if draw.chance(0.2):
        ask = draw.pick(("请问", "你好，", "我想知道，", "请告诉我，", "想问一下，")) + ask
    if draw.chance(0.06):
        at = draw.whole(0, len(ask) - 1)
        ask = ask[:at] + ask[at + 1 :]
    return ask.rstrip("？。") if draw.chance(0.2) else ask


def _thought(draw: Draw) -> str:
    return draw.pick(
        ("This is a question about Ballast.", "I know this about Ballast.", "The user asks about Ballast.")
    )
