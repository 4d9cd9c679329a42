"""Which reader reads which form of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ballast.families.family import CallStyle
from ballast.text.calls.dsml_calls import DsmlCalls
from ballast.text.calls.invoke_calls import FUNCTION, InvokeCalls
from ballast.text.calls.json_calls import JsonCalls
from ballast.text.calls.keyed_calls import KeyedCalls
from ballast.text.calls.named_calls import NamedCalls
from ballast.text.calls.reader import ReadCalls
from ballast.text.calls.separated import SeparatedCalls
from ballast.text.calls.tagged_calls import TaggedCalls


def reader_of(style: CallStyle, tools: Sequence[Mapping[str, Any]]) -> ReadCalls:
    """Makes readers of calls of `tools`, which are as in OpenAI's requests."""
    match style:
        case "json":
            return partial(JsonCalls, tools=tools)
        case "dsml" | "dsml_tools":
            return DsmlCalls
        case "keyed":
            return partial(KeyedCalls, tools=tools)
        case "invoke":
            return partial(InvokeCalls, tools=tools)
        case "function":
            return partial(InvokeCalls, tools=tools, spelling=FUNCTION)
        case "tagged":
            return partial(TaggedCalls, tools=tools)
        case "named":
            return NamedCalls
        case _:
            return SeparatedCalls
