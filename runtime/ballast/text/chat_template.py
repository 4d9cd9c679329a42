"""Chat messages to prompt text, by the model's own Jinja template, in a sandbox.

The template is a program that came with a model file. The sandbox keeps it from every Python object but its values,
and its output is bounded. It does not bound the time or memory of one expression: who picks the model trusts that much.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ballast.errors import ModelError, RequestError
from ballast.text.messages import normalize_messages

MAX_PROMPT_CHARS = 1 << 24
"""More than any context takes; a template that writes more has run away."""

_THINK = "<think>"
_END_THINK = "</think>"


class ChatTemplate:
    """One model's template, compiled. Raises ModelError when it is not valid Jinja. May be used by several threads.

    `name` says where the template came from.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str, name: str = "chat template") -> None:
        self.source = source
        self._specials = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(name, f"chat template, line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, BOS included when the template writes it. `options` reach the template as they are, under
        names of their own: they cannot replace the messages or the special tokens.

        Raises RequestError for messages that cannot be used, and when the template fails, with its message.
        """
        values = {
            **(options or {}),
            **self._specials,
            "messages": normalize_messages(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return _join_bounded(self._template.generate(values))
        except RequestError:
            raise
        except Exception as error:  # a template can fail in as many ways as any program
            raise RequestError(
                f"the model's chat template cannot render these messages: {error}", param="messages"
            ) from error


def force_think(prompt: str) -> str:
    """`prompt` ending in an open `<think>` and a newline, exactly once, whatever the template wrote there."""
    opened = prompt.removesuffix("\n")
    if opened.endswith(_THINK):
        return f"{opened}\n"
    return f"{prompt.removesuffix(_END_THINK)}{_THINK}\n"


def _environment() -> jinja2.Environment:
    # The options, `tojson` and the two functions are what transformers gives to templates (apply_chat_template).
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().astimezone().strftime(format_)


def _join_bounded(pieces: Any) -> str:
    text: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_PROMPT_CHARS:
            raise RequestError(f"the rendered prompt exceeds {MAX_PROMPT_CHARS} characters", param="messages")
        text.append(piece)
    return "".join(text)
