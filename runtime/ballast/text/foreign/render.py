"""What the guarded process of templates does: compiles and renders."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jinja2

from ballast.text.template_sandbox import CompiledTemplate


def answer(task: Any) -> Any:
    """Of a template's source alone, the variables that it uses; of source, values and date, the rendered text."""
    match task:
        case [source]:
            return sorted(_compiled(source).variables)
        case [source, values, today]:
            return _compiled(source).render(values, today)


@lru_cache(maxsize=8)
def _compiled(source: str) -> CompiledTemplate:
    try:
        return CompiledTemplate(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from None
