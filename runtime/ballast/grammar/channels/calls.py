"""The grammar of a call that is a message to a function, from the header to the end of its arguments.

The function's name comes before the channel, as in templates, or after it, as most models write it. With the name in
front, the channel is the one for calls: a limit of reasoning would count a message on the other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ballast.families.family import CALL_CHANNEL, REASONING_CHANNEL
from ballast.families.marks import Mark
from ballast.grammar.source import quoted

_TO = quoted(" to=functions.")


def channel_frame(names: Sequence[str], rules: Mapping[Mark, str]) -> list[str]:
    """The rule `calls` for one call. `names`: the rules of its functions, which `channel_call` has written."""
    early, late = (" | ".join(f"{name}_{form}" for name in names) for form in ("early", "late"))
    channel, call = rules[Mark.CHANNEL], quoted(CALL_CHANNEL)
    json = quoted("json")
    return [
        f"calls: {_TO} ({early}) | {channel} ({call} | {quoted(REASONING_CHANNEL)}) {_TO} ({late})",
        f"channel: {channel} {call}",
        f"message: ({quoted(' ')}? {rules[Mark.CONSTRAIN]} {json} | {quoted(' json')})? {rules[Mark.MESSAGE]}",
    ]


def channel_call(rule: str, name: str, arguments: str) -> Iterator[str]:
    """The rules of one function's calls, starting with its name."""
    yield f"{rule}_early: {quoted(name)} channel message {arguments}"
    yield f"{rule}_late: {quoted(name)} message {arguments}"
