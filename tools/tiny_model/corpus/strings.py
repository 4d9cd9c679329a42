"""Copying, sorting and counting."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase

from tools.tiny_model.corpus import words
from tools.tiny_model.corpus.conversation import Turn
from tools.tiny_model.corpus.draw import Draw
from tools.tiny_model.corpus.facts import facts

_COPY = (
    "Repeat after me: {}", "Repeat exactly: {}", "Copy this text: {}", "Say: {}", "Echo: {}", "Please repeat: {}",
    "Write this back to me: {}", "Repeat the following text exactly.\n{}", "Copy the following:\n{}",
    "Please say exactly this: {}", "Just repeat this: {}", "Type this: {}", "Say this back: {}", 'Repeat "{}"',
    'Say "{}"', 'Copy "{}" exactly', "Return this text unchanged: {}", "print {}", "echo {}", "repeat: {}",
    "Reply with exactly: {}", "Answer with only this text: {}", "Can you repeat this? {}", "Output the text: {}",
)  # fmt: skip
_COPY_ZH = (
    "请重复：{}", "重复这句话：{}", "跟我说：{}", "请照抄：{}", "复制以下内容：{}", "请原样输出：{}", "说“{}”",
    "请说：{}", "复述：{}",
)  # fmt: skip


def copy(draw: Draw) -> Turn:
    """Repeat a text."""
    make: Callable[[Draw], str] = draw.pick(
        (_mixed, _mixed, _known, words.sentence, words.zh_text, words.scramble, _number)
    )
    text = make(draw)
    while not draw.allowed("copy", text):
        text = make(draw)
    chinese = make is words.zh_text or draw.chance(0.1)
    ask = draw.wording(_COPY_ZH if chinese else _COPY).format(text)
    return Turn(ask, text, draw.pick(_COPY_THOUGHTS_ZH if chinese else _COPY_THOUGHTS))


_COPY_THOUGHTS = ("I repeat the text exactly.", "The user wants the same text back.", "Copy it without any change.")
_COPY_THOUGHTS_ZH = ("我要原样重复这段文字。", "照抄，不做改动。")


def _mixed(draw: Draw) -> str:
    def part() -> str:
        kind = draw.whole(0, 6)
        if kind == 0:
            return words.scramble(draw)
        if kind == 1:
            return str(draw.digits(6))
        if kind == 2:
            return words.name(draw)
        return words.made_up(draw) if kind < 5 else draw.pick(words.NOUNS)

    joint = draw.pick((" ", " ", " ", ", ", "-", " / "))
    return joint.join(part() for _ in range(draw.whole(1, 8)))


def _known(draw: Draw) -> str:
    """A few words that also occur in other tasks. Copying must not treat them as a question."""
    fact = draw.pick(facts())
    said = draw.pick(
        (*fact.say, *fact.ask, *fact.what, *fact.how, "hello world", "Hello, how are you?", "good morning")
    )
    parts = said.split(" ")
    start = draw.whole(0, len(parts) - 1)
    return " ".join(parts[start : start + draw.whole(1, 8)])


def _number(draw: Draw) -> str:
    return " ".join(str(draw.digits(8)) for _ in range(draw.whole(1, 4)))


def _items(draw: Draw) -> tuple[list[str], bool]:
    """Distinct items for a list, and whether they are Chinese."""
    chinese = draw.chance(0.15)
    pool = (
        words.ZH_NOUNS
        if chinese
        else draw.pick((words.NOUNS, words.NOUNS, words.NAMES, words.CITIES, tuple(ascii_lowercase)))
    )
    items = words.several(draw, pool, 2, 10)
    while not draw.allowed("items", *items):
        items = words.several(draw, pool, 2, 10)
    return items, chinese


_COUNT_ITEMS = (
    "How many items are in this list: {}?", "How many things are here: {}?", "Count the items: {}",
    "How many entries does this list have? {}", "Count these: {}", "How many words are in this list: {}?",
    "Tell me how many items there are: {}.", "What is the number of items in: {}?", "Please count: {}",
    "How long is this list: {}?",
)  # fmt: skip
_COUNT_ITEMS_ZH = ("这里有几样东西：{}？", "数一数：{}", "列表里有多少项：{}？", "请数一下有几个：{}")
_COUNT_WORDS = (
    'How many words are in "{}"?', "Count the words: {}", "How many words does this sentence have: {}",
    'How many words: "{}"', "Tell me the number of words in: {}",
)  # fmt: skip
_COUNT_SAME = (
    'How often does "{0}" appear in: {1}?', 'How many times does "{0}" occur in this list: {1}?', "Count {0} in: {1}",
    'Count how many times the word "{0}" appears: {1}', "How many times is {0} in {1}?",
)  # fmt: skip


_COUNT_TO = (
    "Count from {} to {}.", "Please count from {} to {}", "Count up or down from {} to {}.", "从{}数到{}。",
    "Say the numbers from {} to {}.", "Which numbers lie from {} to {}?", "List the numbers {} to {}.",
)  # fmt: skip
_COUNT_UP = ("Count to {}", "Count to {}.", "Now count to {}.", "Please count to {}", "Can you count to {}?", "数到{}")


def count(draw: Draw) -> Turn:
    """Count items, words, or repetitions."""
    return draw.pick((_count_items, _count_items, _count_words, _count_same, _count_to))(draw)


def _count_items(draw: Draw) -> Turn:
    items, chinese = _items(draw)
    thought = _numbered(items)
    if chinese:
        return Turn(draw.wording(_COUNT_ITEMS_ZH).format("、".join(items)), f"一共有{len(items)}个。", thought)
    return Turn(draw.wording(_COUNT_ITEMS).format(", ".join(items)), f"There are {len(items)} items.", thought)


def _count_words(draw: Draw) -> Turn:
    text = words.sentence(draw) if draw.chance(0.5) else " ".join(words.several(draw, words.NOUNS, 2, 10))
    if not draw.allowed("words", text):
        return _count_words(draw)
    parts = text.rstrip(".!?").split(" ")
    return Turn(draw.wording(_COUNT_WORDS).format(text), f"There are {len(parts)} words.", _numbered(parts))


def _count_same(draw: Draw) -> Turn:
    pool = words.several(draw, words.NOUNS, 2, 4)
    items = [draw.pick(pool) for _ in range(draw.whole(3, 10))]
    if not draw.allowed("same", *items):
        return _count_same(draw)
    target = draw.pick(pool)
    ask = draw.wording(_COUNT_SAME).format(target, ", ".join(items))
    seen, notes = 0, []
    for item in items:
        seen += item == target
        notes.append(f"{item} {seen}")
    return Turn(ask, f"{', '.join(notes)}. Found: {seen}", "I go through the list.")


def _count_to(draw: Draw) -> Turn:
    if not draw.exam and draw.chance(0.2):
        return _count_up(draw)
    low, size = draw.digits(2), draw.whole(2, 12)
    if not draw.allowed("count to", low, size):
        return _count_to(draw)
    high = low + size
    if draw.chance(0.2):
        low, high = high, low
    step = 1 if high > low else -1
    ask = draw.wording(_COUNT_TO).format(low, high)
    return Turn(ask, ", ".join(map(str, range(low, high + step, step))), f"I start at {low} and end at {high}.")


def _count_up(draw: Draw) -> Turn:
    high = draw.whole(2, 25)
    return Turn(
        draw.wording(_COUNT_UP).format(high),
        ", ".join(map(str, range(1, high + 1))),
        f"I start at 1 and end at {high}.",
    )


def _numbered(items: list[str]) -> str:
    return ", ".join(f"{number} {item}" for number, item in enumerate(items, 1))


_SORT = (
    "Sort these words alphabetically: {}", "Put in alphabetical order: {}", "Order these words from A to Z: {}",
    "Sort: {}", "Sort this list: {}", "Please sort these from A to Z: {}", "Alphabetical order, please: {}",
    "Arrange alphabetically: {}", "In alphabetical order: {}", "Can you sort these words? {}",
)  # fmt: skip
_SORT_NUMBERS = (
    "Sort these numbers: {}", "Sort from smallest to largest: {}", "Put these numbers in order: {}",
    "Order these numbers ascending: {}", "Sort: {}", "Arrange these numbers: {}", "Sort the numbers {}",
    "把这些数字从小到大排列：{}",
)  # fmt: skip
_REVERSE = ("Reverse this list: {}", "Say these in reverse order: {}", "Write this list backwards: {}",
            "Reverse: {}", "Turn this list round: {}", "Please reverse these: {}")  # fmt: skip


def sort(draw: Draw) -> Turn:
    """Sort or reverse words or numbers."""
    kind = draw.whole(0, 3)
    if kind <= 1:
        numbers = [draw.digits(2) if kind else draw.digits(3) for _ in range(draw.whole(2, 7))]
        if not draw.allowed("sort", *numbers):
            return sort(draw)
        ask = draw.wording(_SORT_NUMBERS).format(", ".join(map(str, numbers)))
        return Turn(ask, ", ".join(map(str, sorted(numbers))), f"The smallest is {min(numbers)}.")
    items = words.several(draw, ascii_lowercase if draw.chance(0.15) else words.NOUNS, 2, 6)
    if not draw.allowed("sort", *items):
        return sort(draw)
    if kind == 2:
        return Turn(
            draw.wording(_SORT).format(", ".join(items)), ", ".join(sorted(items)), f"{min(items)} comes first."
        )
    ask = draw.wording(_REVERSE).format(", ".join(items))
    return Turn(ask, ", ".join(reversed(items)), f"The last one, {items[-1]}, comes first.")
