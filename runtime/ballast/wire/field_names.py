"""Translates field names in errors: a request that was converted to a chat request gets errors with its API's names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from ballast.errors import RequestError

RESPONSES_FIELDS = {
    r"response_format(\.json_schema)?": "text.format",
    r"max_completion_tokens": "max_output_tokens",
    r"reasoning_effort": "reasoning.effort",
    r"tool_choice\.allowed_tools(\.tools\.\d+)\.function": r"tool_choice\1",
    r"tool_choice\.(allowed_tools|function)": "tool_choice",
    r"(tools\.\d+)\.function": r"\1",
    r"messages(\..*)?": "input",
}
MESSAGES_FIELDS = {
    r"response_format(\.json_schema)?": "output_config.format",
    r"reasoning_effort": "output_config.effort",
    r"stop": "stop_sequences",
    r"tool_choice\.function": "tool_choice",
    r"(tools\.\d+)\.function\.parameters": r"\1.input_schema",
    r"(tools\.\d+)\.function": r"\1",
}


@contextlib.contextmanager
def client_field_names(names: Mapping[str, str]) -> Iterator[None]:
    """Translate the field names in a RequestError from the chat request to the client's API.

    `names`: regular expression for the beginning of a path → its replacement; the first match counts.
    """
    try:
        yield
    except RequestError as error:
        # A message contains a field name at its beginning and in "… or lower FIELD".
        message = re.sub(r"^[\w.]+(?=: | )|(?<= or lower )\w+", lambda word: client_name(word[0], names), error.message)
        param = error.param and client_name(error.param, names)
        raise RequestError(message, param=param, code=error.code, status=error.status) from None


def client_name(path: str, names: Mapping[str, str]) -> str:
    """The client's name for the chat request's field `path`; `names` as in `client_field_names`."""
    for chats, clients in names.items():
        renamed, count = re.subn(rf"^{chats}(?=\.|$)", clients, path)
        if count:
            return renamed
    return path
