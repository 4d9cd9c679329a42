"""Arguments that come as pairs of a key and a bare value, made into one JSON object as they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ballast.text.calls.argument_values import STRING, as_json, types_of


class Pairs:
    """The arguments of one call. Each method returns JSON text to pass on. A value that can only be a string is passed
    on as it arrives, any other when it has ended."""

    def __init__(self, parameters: Mapping[str, Any] | None) -> None:
        """`parameters`: the schema of the function's arguments."""
        self._parameters = parameters
        self._num_pairs = 0
        self._types: frozenset[str] = frozenset()
        self._value = ""
        """The value's text that is not passed on yet."""

    @property
    def _is_string(self) -> bool:
        return self._types == {STRING}

    def begin_value(self, key: str) -> str:
        """A pair begins."""
        self._value, self._types = "", types_of(self._parameters, key)
        begin = "{" if self._num_pairs == 0 else ", "
        self._num_pairs += 1
        quote = '"' if self._is_string else ""
        return f"{begin}{json.dumps(key, ensure_ascii=False)}: {quote}"

    def value(self, text: str) -> str:
        """More of the value."""
        if self._is_string:
            return json.dumps(text, ensure_ascii=False)[1:-1]
        self._value += text
        return ""

    def end_value(self) -> str:
        """The value is complete."""
        return '"' if self._is_string else as_json(self._value, self._types)

    def cut_value(self) -> str:
        """The reply has ended within the value: what there is of it."""
        return "" if self._is_string else self._value

    def end(self) -> str:
        """All pairs are complete."""
        return "}" if self._num_pairs else "{}"


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any] | None]:
    """The schema of each function's arguments, by name, of tools as in OpenAI's requests."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") for function in functions}
