"""A request that came in other words than a chat's is wrong in the words it came in."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from ballast.errors import RequestError

OF_RESPONSES = {
    r"response_format(\.json_schema)?": "text.format",
    r"max_completion_tokens": "max_output_tokens",
    r"reasoning_effort": "reasoning.effort",
    r"tool_choice\.allowed_tools(\.tools\.\d+)\.function": r"tool_choice\1",
    r"tool_choice\.(allowed_tools|function)": "tool_choice",
    r"(tools\.\d+)\.function": r"\1",
    r"messages(\..*)?": "input",
}
OF_MESSAGES = {
    r"response_format(\.json_schema)?": "output_config.format",
    r"reasoning_effort": "output_config.effort",
    r"stop": "stop_sequences",
    r"tool_choice\.function": "tool_choice",
    r"(tools\.\d+)\.function\.parameters": r"\1.input_schema",
    r"(tools\.\d+)\.function": r"\1",
}


@contextlib.contextmanager
def in_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """Raise a RequestError of a chat about the client's field. `names`: what replaces which beginnings of a path, as
    regular expressions; the first that fits counts."""
    try:
        yield
    except RequestError as error:
        # A sentence names a field where it begins, and where it says what to lower.
        said = re.sub(r"^[\w.]+(?=: | )|(?<= or lower )\w+", lambda word: _renamed(word[0], names), error.message)
        param = error.param and _renamed(error.param, names)
        raise RequestError(said, param=param, code=error.code, status=error.status) from None


def _renamed(path: str, names: Mapping[str, str]) -> str:
    for chats, clients in names.items():
        renamed, count = re.subn(rf"^{chats}(?=\.|$)", clients, path)
        if count:
            return renamed
    return path
