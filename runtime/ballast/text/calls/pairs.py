"""Arguments that come as pairs of a key and a bare value, made into one JSON object as they arrive."""

from __future__ import annotations

import json

from ballast.text.calls.argument_values import STRING, as_json
from ballast.text.calls.parameters import Parameters


class Pairs:
    """The arguments of one call. Each method returns JSON text to pass on. A value that can only be a string is passed
    on as it arrives, any other when it has ended."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.keys: set[str] = set()
        """Of the pairs so far."""
        self._types: frozenset[str] = frozenset()
        self._value = ""
        """The value's text that is not passed on yet."""

    @property
    def is_string(self) -> bool:
        """Whether the current value can only be a string."""
        return self._types == {STRING}

    @property
    def may_be_string(self) -> bool:
        """Whether the current value may be a string."""
        return STRING in self._types

    def begin_value(self, key: str) -> str:
        """A pair begins."""
        self._value, self._types = "", self._parameters.types_of(key)
        begin = ", " if self.keys else "{"
        self.keys.add(key)
        quote = '"' if self.is_string else ""
        return f"{begin}{json.dumps(key, ensure_ascii=False)}: {quote}"

    def value(self, text: str) -> str:
        """More of the value."""
        if self.is_string:
            return json.dumps(text, ensure_ascii=False)[1:-1]
        self._value += text
        return ""

    def end_value(self) -> str:
        """The value is complete."""
        return '"' if self.is_string else as_json(self._value, self._types)

    def cut_value(self) -> str:
        """The reply has ended within the value: what there is of it."""
        return "" if self.is_string else self._value

    def end(self) -> str:
        """All pairs are complete."""
        return "}" if self.keys else "{}"
