"""The Jinja environment of chat templates. A template reaches no Python objects but its values.

It has no limits of time and memory: templates that are not Ballast's own run in a guarded process, which has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from functools import partial
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ballast.text.control_text import unescape

MAX_CHARS = 1 << 24
"""More than any context takes; a template that writes more is running away."""


class CompiledTemplate:
    """A template, ready to be rendered. Thread-safe. Raises jinja2.TemplateSyntaxError."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        self._template = environment.from_string(source)

    def render(self, values: Mapping[str, Any], today: str | None = None) -> str:
        """Render the template. Raises the template's errors, and ValueError if the text is too long.

        `today` is the date that the template reads, as YYYY-MM-DD; None: the clock's.
        """
        if today is not None:
            values = {**values, "strftime_now": partial(_strftime_of, today)}
        chunks: list[str] = []
        size = 0
        for chunk in self._template.generate(values):
            size += len(chunk)
            if size > MAX_CHARS:
                raise ValueError(f"the rendered prompt exceeds {MAX_CHARS} characters")
            chunks.append(chunk)
        return "".join(chunks)


class GenerationBlocks(Extension):
    """Renders `{% generation %}…{% endgeneration %}` as what is inside. With these blocks templates mark the
    assistant's text for training; in transformers they have a scope of their own as well."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's content."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> jinja2.Environment:
    """With the options, the blocks, the `tojson` filter and the two functions that transformers gives to templates
    (apply_chat_template)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlocks]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["unprotected"] = unescape  # for tests of what a client wrote; never for output
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
    # Jinja's own filter escapes <, > and & for HTML; that would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().astimezone().strftime(format_)


def _strftime_of(today: str, format_: str) -> str:
    return date.fromisoformat(today).strftime(format_)
