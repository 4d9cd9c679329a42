"""Facts that the user has told about himself and asks for later, and facts that he has not told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.tiny_model.corpus import words
from tools.tiny_model.corpus.conversation import Turn
from tools.tiny_model.corpus.draw import Draw

NOT_TOLD, NOT_TOLD_ZH = "You have not told me", "你还没有告诉我"


@dataclass(frozen=True, slots=True)
class Detail:
    """A fact that people tell about themselves: statements, questions and answers."""

    about: str
    tell: tuple[str, ...]
    ask: tuple[str, ...]
    say: str
    make: Callable[[Draw], str]


DETAILS = (
    Detail("your name", ("My name is {}.", "I am {}.", "People call me {}.", "Call me {}.", "Hi, I am {}.",
    "I'm {}, hello."),
           ("What is my name?", "Who am I?", "Tell me my name.", "Do you remember my name?", "what's my name",
           "How am I called?"),
           "Your name is {}.", words.name),
    Detail("where you live", ("I live in {}.", "My home is {}.", "I have moved to {}.", "I am from {}.",
    "My city is {}."),
           ("Where do I live?", "Which city do I live in?", "What is my home town?", "Do you know where I live?",
           "my city?"),
           "You live in {}.", words.city),
    Detail("your age", ("I am {} years old.", "My age is {}.", "I have just turned {}.", "I'm {}."),
           ("How old am I?", "What is my age?", "Tell me how old I am.", "Do you know my age?", "my age?"),
           "You are {} years old.", lambda draw: str(draw.whole(5, 99))),
    Detail("your favourite colour",
           ("My favourite colour is {}.", "I like {} best of all colours.", "The colour that I love is {}.",
           "I love the colour {}."),
           ("What is my favourite colour?", "Which colour do I like?", "Tell me my favourite colour.",
           "my favourite color?"),
           "Your favourite colour is {}.", lambda draw: draw.pick(words.ADJECTIVES[:11])),
    Detail("what you eat", ("My favourite food is {}.", "I like to eat {}.", "The food that I love is {}.",
    "I eat {} every day."),
           ("What is my favourite food?", "What do I like to eat?", "Tell me what I like to eat.",
           "my favourite food?"),
           "You like to eat {}.", lambda draw: draw.pick(words.FOODS)),
    Detail("what your dog is called", ("My dog is called {}.", "I have a dog, {}.", "The name of my dog is {}.",
    "My dog's name is {}."),
           ("What is my dog called?", "What is the name of my dog?", "How is my dog called?", "my dog's name?"),
           "Your dog is called {}.", words.name),
    Detail("your number", ("My number is {}.", "Remember the number {}.", "Keep {} in mind.", "The code is {}.",
    "Note that my code is {}."),
           ("What is my number?", "Which number did I tell you?", "What number should you keep?",
           "What was the code?", "my number?"),
           "Your number is {}.", lambda draw: str(draw.digits(6))),
)  # fmt: skip
_NAME = DETAILS[0]
_TELL_ZH, _ASK_ZH, _SAY_ZH = (
    ("我叫{}。", "我的名字是{}。", "大家叫我{}。", "叫我{}吧。"),
    ("我叫什么？", "我的名字是什么？", "我是谁？", "你记得我的名字吗？"),
    "你叫{}。",
)
_AGAIN = (
    "Say that again.",
    "Repeat your answer.",
    "Tell me once more.",
    "Once more, please.",
    "Again?",
    "请再说一遍。",
)
_HEARD = ("I will remember that.", "Good to know.", "I keep that in mind.")


def remembered(draw: Draw, between: Callable[[Draw], Turn]) -> list[Turn]:
    """The user tells a fact, talks about something else, and asks for that fact or for one that he did not tell."""
    if draw.chance(0.12):
        return _in_chinese(draw)
    told = draw.some(DETAILS, 1 if draw.exam else 0, 3)
    values = {detail.about: detail.make(draw) for detail in told}
    if told and not draw.allowed("told", *values.items()):
        return remembered(draw, between)
    turns = [_tell(draw, detail, values[detail.about]) for detail in told]
    for _ in range(draw.pick((0, 0, 1, 1, 2, 3))):
        turns.insert(draw.whole(0, len(turns)), between(draw))
    asked = draw.pick(told) if told and draw.chance(0.6) else draw.pick(DETAILS)
    return [*turns, _ask(draw, asked, values.get(asked.about))]


def _tell(draw: Draw, detail: Detail, value: str) -> Turn:
    said = f"Nice to meet you, {value}!" if detail is _NAME else draw.pick(_HEARD)
    thought = f"The user is called {value}." if detail is _NAME else f"The user said {value}."
    return Turn(draw.wording(detail.tell).format(value), said, thought)


def _ask(draw: Draw, detail: Detail, value: str | None) -> Turn:
    ask = draw.wording(detail.ask)
    if value is None:
        return Turn(ask, f"{NOT_TOLD} {detail.about}.", "The user has not said that.")
    return Turn(ask, detail.say.format(value), f"The user said {value}.")


def _in_chinese(draw: Draw) -> list[Turn]:
    ask = draw.wording(_ASK_ZH)
    if draw.chance(0.4):
        return [Turn(ask, f"{NOT_TOLD_ZH}你的名字。", "用户没有说过。")]
    name = words.name(draw)
    return [
        Turn(draw.wording(_TELL_ZH).format(name), f"很高兴认识你，{name}！", f"用户叫{name}。"),
        Turn(ask, _SAY_ZH.format(name), f"用户叫{name}。"),
    ]


def again(draw: Draw, before: Sequence[Turn]) -> Turn:
    """A question for the last answer. There may have been none."""
    ask = draw.wording(_AGAIN)
    if before:
        return Turn(ask, before[-1].reply, "I repeat my last answer.")
    return Turn(ask, "I have not said anything yet.", "There is no last answer.")
