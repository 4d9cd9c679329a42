"""The sandbox for chat templates. A template reaches no Python objects but its values, and is stopped if it runs or
grows without end.

The deadline is checked at every line that the template executes. The results of operators, filters and calls are
bounded in size, and so are the numbers that they take.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn, TypeVar

import jinja2
from jinja2.ext import loopcontrols
from jinja2.runtime import str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 1 << 24
"""More than any context takes; a template that writes more is running away."""

# A width of five digits, or one taken from the arguments, in patterns of `%` and of str.format.
_WIDE = re.compile(r"%[-+ #0]*(?:\d*\.)?(?:\d{5}|\*)|\{[^{}]*:[^{}]*(?:\d{5}|\{)")

Result = TypeVar("Result")


class TemplateTimeoutError(Exception):
    """The template ran past its deadline."""


class TemplateSizeError(Exception):
    """The template made a text or a list that is larger than any prompt."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Has the options, the `tojson` filter and the two functions that transformers gives to templates
    (apply_chat_template)."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters["tojson"] = _to_json
        self.filters["format"] = _format
        self.filters = {name: _bounded(function) for name, function in self.filters.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compiled(self, source: str) -> jinja2.Template:
        """The template. Raises jinja2.TemplateSyntaxError."""
        template = self.from_string(source)
        # `a ~ b` compiles to a call of this name; it is the one operator without a hook in Jinja.
        template.root_render_func.__globals__["str_join"] = _bounded_join
        return template

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)` with bounded arguments and result."""
        _check_numbers(args, kwargs)
        return _checked(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, without large widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_pattern(value.__self__)
        return wrapped

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, refused if the result would be larger than any prompt."""
        match operator:
            case "+" if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                _check_size(len(left) + len(right))
            case "*" if isinstance(left, str | list | tuple) and isinstance(right, int):
                _check_size(len(left) * right)
            case "*" if isinstance(right, str | list | tuple) and isinstance(left, int):
                _check_size(left * len(right))
            case "*" if isinstance(left, int) and isinstance(right, int):
                _check_size(left.bit_length() + right.bit_length())
            case "**" if isinstance(left, int) and isinstance(right, int):
                _check_size(left.bit_length() * right)
            case "%" if isinstance(left, str):
                _check_pattern(left)
        return _checked(super().call_binop(context, operator, left, right))


def run_with_timeout(timeout_s: float, work: Callable[[], Result]) -> Result:
    """The result of `work()`. Raises TemplateTimeoutError inside `work` once `timeout_s` seconds have passed.

    Uses the calling thread's trace function, and restores it.
    """
    deadline = time.monotonic() + timeout_s

    def watch(_frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
        if time.monotonic() > deadline:
            raise TemplateTimeoutError(f"it ran for more than {timeout_s:g} s")
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        return work()
    finally:
        sys.settrace(before)


def join_bounded(pieces: Iterable[str]) -> str:
    """The pieces as one text. Raises TemplateSizeError."""
    text: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        _check_size(size)
        text.append(piece)
    return "".join(text)


def _bounded_join(values: Iterable[Any]) -> str:
    return str_join(_counted(values))


def _counted(values: Iterable[Any]) -> Iterable[str]:
    size = 0
    for value in values:
        text = str(value)
        size += len(text)
        _check_size(size)
        yield text


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise TemplateSizeError(f"the rendered prompt exceeds {MAX_CHARS} characters")


def _check_pattern(pattern: str) -> None:
    if _WIDE.search(pattern):
        raise TemplateSizeError(f"a width in {pattern[:80]!r} is too large")


def _check_numbers(args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MAX_CHARS:
            raise TemplateSizeError(f"the number {value} is too large")


def _checked(value: Result) -> Result:
    if isinstance(value, str | list | tuple):
        _check_size(len(value))
    return value


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return _checked(function(*args, **kwargs))

    return bounded


def _format(pattern: str, *args: Any, **kwargs: Any) -> str:
    _check_pattern(pattern)
    return pattern % (kwargs or args)


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
