"""The common part of readers whose tags are ordinary text, which arrives in chunks that may end within a tag."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ballast.families.marks import Mark
from ballast.text.calls.pairs import Pairs
from ballast.text.calls.parameters import Parameters, parameters_of
from ballast.text.calls.reader import BracketedCalls, NewId
from ballast.text.calls.tags import StringScan
from ballast.text.reply_parts import Part, new_call_id


class SpelledTags(BracketedCalls):
    """Collects text until the next tag is complete, and passes string values on as they arrive."""

    def __init__(self, new_id: NewId = new_call_id, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools` as in OpenAI's requests: their schemas say which values are strings."""
        super().__init__(new_id)
        self._functions = parameters_of(tools)

    def _begin(self) -> None:
        self._text = ""
        """The text that is not read yet."""
        self._pairs = Pairs(Parameters())
        self._looked_at = 0
        """The index in the text up to which no tag, or no end of a value, was found."""
        self._strings = StringScan()
        """Of the current value."""

    def _inner_mark(self, mark: Mark) -> list[Part]:
        return []

    def _inner_text(self, text: str) -> list[Part]:
        # The only reference to a string lets it grow in place; appending to an attribute copies it each time.
        grown, self._text = self._text, ""
        grown += text
        self._text = grown
        return [*self._read_all(), *self._certain_value()]

    def _read_all(self) -> list[Part]:
        parts: list[Part] = []
        while (more := self._read()) is not None:
            parts += more
        return parts

    def _certain_value(self) -> list[Part]:
        """Pass on the text that is certainly part of a string."""
        if not self._is_in_value() or not self._pairs.is_string:
            return []
        certain, self._text = self._text[: self._looked_at], self._text[self._looked_at :]
        self._looked_at = 0
        return self._value(certain)

    def _value(self, text: str) -> list[Part]:
        """`text` is part of the value."""
        return self._arguments(self._pairs.value(text))

    @abstractmethod
    def _read(self) -> list[Part] | None:
        """The parts of the next tag; None if it is not complete."""

    @abstractmethod
    def _is_in_value(self) -> bool:
        """Whether the next text belongs to a value."""
