"""The tasks, their frequencies in training, and how single exchanges become conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.tiny_model.corpus import arithmetic, facts, json_replies, memory, small_talk, strings, tool_use, words
from tools.tiny_model.corpus.conversation import Conversation, Turn
from tools.tiny_model.corpus.draw import Draw

_TURNS: tuple[tuple[int, Callable[[Draw], Turn]], ...] = (
    (36, facts.question),
    (4, small_talk.talk),
    (2, small_talk.greeting),
    (5, small_talk.unknown),
    (2, tool_use.without_tools),
    (15, strings.copy),
    (12, strings.count),
    (6, strings.sort),
    (9, arithmetic.add),
    (4, arithmetic.arithmetic),
)
_BESIDE_TOOLS = (facts.question, facts.question, strings.copy, strings.count, small_talk.talk, small_talk.greeting)
"""Exchanges that need no tool, even if tools are offered."""
_TOOL_CALL_SHARE, _JSON_SHARE = 0.20, 0.08
_NO_CALL_SHARE, _MEMORY_SHARE = 0.03, 0.05
_VERY_LONG_SHARE = 0.018
"""Share of all conversations. They have about a fifth of all tokens."""
_SEVERAL_CALLS_SHARE = 0.12
"""Share of the conversations with calls that call the same tools again and again, like an agent."""
_THINK_SHARE = 0.35
_LONG_SHARE = 0.22
_SYSTEMS = (
    "You are a helpful assistant.", "You are Ballast's built-in model.", "Be brief.", "Answer politely.",
    "You are a small language model.", "Today is a good day.", "Answer the user's questions.", "你是一个有用的助手。",
)  # fmt: skip


def turn(draw: Draw) -> Turn:
    """One exchange without tools."""
    weights, makers = zip(*_TURNS, strict=True)
    (make,) = draw.random.choices(makers, weights)
    made: Turn = make(draw)
    return made


def _beside_tools(draw: Draw) -> Turn:
    made: Turn = draw.pick(_BESIDE_TOOLS)(draw)
    return made


def conversation(draw: Draw) -> Conversation:
    """One conversation for training."""
    kind = draw.random.random()
    if kind < _TOOL_CALL_SHARE:
        return _lengthened(draw, tool_use.call(draw))
    kind -= _TOOL_CALL_SHARE
    if kind < _NO_CALL_SHARE:
        return tool_use.no_call(draw, _beside_tools(draw))
    kind -= _NO_CALL_SHARE
    if kind < _MEMORY_SHARE:
        return Conversation(tuple(memory.remembered(draw, turn)), _system(draw))
    kind -= _MEMORY_SHARE
    if kind < _JSON_SHARE:
        return json_replies.any_of(draw) if draw.chance(0.85) else json_replies.answer(draw, turn(draw))
    kind -= _JSON_SHARE
    if kind < _VERY_LONG_SHARE:
        return Conversation(tuple(_very_long(draw)), _system(draw))
    turns = [turn(draw)]
    if draw.chance(_LONG_SHARE):
        turns += [turn(draw) for _ in range(draw.whole(6, 20) if draw.chance(0.12) else draw.whole(1, 5))]
        if draw.chance(0.4):
            turns = _followed_up(draw, turns)
    return Conversation(tuple(turns), _system(draw))


def _system(draw: Draw) -> str:
    """Mostly empty, sometimes a short text, and rarely pages that are unrelated to the request."""
    if draw.chance(0.02):
        return " ".join(words.sentence(draw) for _ in range(draw.whole(4, 40)))
    return draw.pick(_SYSTEMS) if draw.chance(0.15) else ""


def _very_long(draw: Draw) -> list[Turn]:
    """A conversation about many subjects. Its last turn sometimes refers to all of it."""
    turns = [turn(draw) for _ in range(draw.whole(12, 54))]
    if draw.chance(0.3):
        *told, asked = memory.remembered(draw, turn)
        return [*told, *turns, asked]
    return [*turns, memory.again(draw, turns)] if draw.chance(0.15) else turns


def _lengthened(draw: Draw, one: Conversation) -> Conversation:
    """Sometimes with other turns before or after the call, or with more calls."""
    if draw.chance(_SEVERAL_CALLS_SHARE):
        return _several_calls(draw, one)
    if draw.chance(0.8):
        return one
    other = _beside_tools(draw)
    turns = (other, *one.turns) if draw.chance(0.5) else (*one.turns, other)
    return Conversation(turns, one.system, one.tools)


def _several_calls(draw: Draw, one: Conversation) -> Conversation:
    """Call after call of tools that are all offered at the beginning, sometimes with a sentence in between."""
    turns, tools = [*one.turns], {tool["name"]: tool for tool in one.tools}
    for _ in range(draw.whole(1, 5)):
        other = tool_use.call(draw)
        if not any(tool["name"] in tools for tool in other.tools):
            tools |= {tool["name"]: tool for tool in other.tools}
            turns += other.turns
        if draw.chance(0.2):
            turns.append(_beside_tools(draw))
    offered = list(tools.values())
    draw.random.shuffle(offered)
    return Conversation(tuple(turns), _system(draw), tuple(offered))


def _followed_up(draw: Draw, turns: list[Turn]) -> list[Turn]:
    """An exchange that depends on the previous one: a second sum, or a repetition of the last answer."""
    if draw.chance(0.5):
        before = turns[: draw.whole(0, 2)]
        return [*before, memory.again(draw, before)]
    first = arithmetic.add(draw)
    total = int(first.reply.rsplit(" ", 1)[1])
    more = draw.digits(2)
    while not draw.allowed("+", total, more):
        more = draw.digits(2)
    reply = f"{total} + {more} = {total + more}"
    ask = draw.wording(_ADD_MORE).format(more)
    return [*turns[:2], first, Turn(ask, reply, arithmetic.add_thought(total, more))]


_ADD_MORE = ("And plus {}?", "Now add {}.", "And {} more?", "Add {} to that.", "plus {}", "再加{}呢？")


def corpus(seed: int) -> Iterator[tuple[Conversation, bool]]:
    """Endless: a conversation, and whether its last reply begins with reasoning."""
    draw = Draw(seed)
    while True:
        yield conversation(draw), draw.chance(_THINK_SHARE)
