"""Sums, differences, small products, comparisons."""

from __future__ import annotations

from tools.tiny_model.corpus import words
from tools.tiny_model.corpus.conversation import Turn
from tools.tiny_model.corpus.draw import Draw

_ADD = (
    "What is {} + {}?", "{} + {} =", "{}+{}=?", "Add {} and {}.", "What is {} plus {}?", "Calculate {} + {}.",
    "How much is {} + {}?", "What's {} + {}?", "{} plus {}", "Compute the sum of {} and {}.", "sum of {} and {}?",
    "Please add {} to {}.", "What do {} and {} make together?", "Solve: {} + {}", "{} + {}", "{}加{}等于多少？",
    "{} + {} 是多少？",
    "计算{}+{}", "请问{}加{}是几？",
)  # fmt: skip
_SUBTRACT = (
    "What is {} - {}?", "{} - {} =", "{}-{}=?", "What is {} minus {}?", "Calculate {} - {}.", "How much is {} - {}?",
    "{} minus {}", "Solve: {} - {}", "{}减{}等于多少？", "计算{}-{}",
)  # fmt: skip
_TIMES = (
    "What is {} times {}?", "What is {} * {}?", "{} x {} =", "Multiply {} by {}.", "{} * {}",
    "How much is {} times {}?",
    "{}乘以{}等于多少？", "{}×{}=?",
)  # fmt: skip
_COMPARE = (
    "Which is larger, {} or {}?", "Which number is bigger: {} or {}?", "Is {} larger than {}?", "{}和{}哪个大？",
)  # fmt: skip


def add(draw: Draw) -> Turn:
    """A sum, mostly of two-digit numbers. One in ten pairs is kept for the evaluation."""
    a, b = _pair(draw, "+")
    return Turn(draw.wording(_ADD).format(a, b), f"{a} + {b} = {a + b}", add_thought(a, b))


def two_digit_sum(draw: Draw) -> Turn:
    """A sum of two-digit numbers."""
    a, b = draw.whole(10, 99), draw.whole(10, 99)
    while not draw.allowed("+", a, b):
        a, b = draw.whole(10, 99), draw.whole(10, 99)
    return Turn(draw.wording(_ADD).format(a, b), f"{a} + {b} = {a + b}", add_thought(a, b))


def add_thought(a: int, b: int) -> str:
    """Adds digit by digit from the right, as taught at school."""
    left, right, carry, steps = str(a), str(b), 0, []
    for place in range(max(len(left), len(right))):
        x, y = (int(n[-1 - place]) if place < len(n) else 0 for n in (left, right))
        total = x + y + carry
        carried = f" + {carry}" if carry else ""
        carry = total // 10
        steps.append(f"{x} + {y}{carried} = {total}" + (f", carry {carry}" if carry else ""))
    return ". ".join(steps) + f". So {a} + {b} = {a + b}."


def arithmetic(draw: Draw) -> Turn:
    """Any arithmetic task except a plain sum."""
    return draw.pick((_subtract, _times, _compare, _story, _three))(draw)


def _pair(draw: Draw, sign: str) -> tuple[int, int]:
    while True:
        a, b = (draw.whole(10, 99) if draw.chance(0.75) else draw.digits(3) for _ in range(2))
        if draw.allowed(sign, a, b):
            return a, b


def _subtract(draw: Draw) -> Turn:
    a, b = _pair(draw, "-")
    a, b = max(a, b), min(a, b)
    if not draw.allowed("-", a, b):
        return _subtract(draw)
    return Turn(draw.wording(_SUBTRACT).format(a, b), f"{a} - {b} = {a - b}", f"{b} and {a - b} make {a}.")


def _three(draw: Draw) -> Turn:
    a, b, c = (draw.digits(2) for _ in range(3))
    if not (draw.allowed("+", a, b) and draw.allowed("+", a + b, c)):
        return _three(draw)
    ask = draw.pick(
        ("What is {} + {} + {}?", "{} + {} + {}", "Add {}, {} and {}.", "{}+{}+{}=?", "Sum of {}, {} and {}?")
    )
    reply = f"{a} + {b} = {a + b}, {a + b} + {c} = {a + b + c}"
    return Turn(ask.format(a, b, c), reply, "I add two, then the third.")


def _times(draw: Draw) -> Turn:
    a, b = draw.whole(0, 12), draw.whole(0, 12)
    return Turn(draw.wording(_TIMES).format(a, b), f"{a} * {b} = {a * b}", f"{a} times {b} is {a * b}.")


def _compare(draw: Draw) -> Turn:
    a, b = draw.digits(3), draw.digits(3)
    if a == b or not draw.allowed("compare", a, b):
        return _compare(draw)
    ask = draw.wording(_COMPARE)
    if ask.startswith("Is "):
        word = "Yes" if a > b else "No"
        return Turn(ask.format(a, b), f"{word}, {max(a, b)} is larger than {min(a, b)}.", f"{a} or {b}.")
    reply = f"{max(a, b)}更大。" if "哪" in ask else f"{max(a, b)} is larger."
    return Turn(ask.format(a, b), reply, f"{max(a, b)} > {min(a, b)}.")


def _story(draw: Draw) -> Turn:
    a, b = _pair(draw, "+")
    who, thing = words.name(draw), draw.pick(words.NOUNS)
    more = draw.pick(("buys {b} more", "finds {b} more", "gets {b} more", "is given {b} more"))
    ask = draw.pick(
        (
            f"{who} has {a} {thing}s and {more}. How many {thing}s does {who} have now?",
            f"There are {a} {thing}s in one box and {{b}} in another. How many {thing}s are there together?",
        )
    ).format(b=b)
    return Turn(ask, f"{a} + {b} = {a + b}, so {a + b} {thing}s.", add_thought(a, b))
