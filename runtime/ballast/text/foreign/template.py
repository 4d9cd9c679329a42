"""A chat template that is compiled and rendered in a guarded process.

Jinja's sandbox keeps a template from Python's objects, not from taking all time and memory that there is: one integer
division can hold every thread for minutes, one `replace` can fill the machine. Only a process that can be killed ends
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast.guarded import GuardedProcess, Limits

LIMITS = Limits(cpu_s=2.0, memory_bytes=512 << 20)
"""Generous: a thousand messages take some 20 ms, and the text of the longest context a few megabytes."""

_PROCESS = GuardedProcess("ballast.text.foreign.render", LIMITS)
"""Shared by all templates of this process, because a server has one. Each task carries the template's source, so that a
process that was restarted needs no state."""


class ForeignTemplate:
    """As CompiledTemplate, but compiling and rendering raise the errors of GuardedProcess.ask."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.variables: frozenset[str] = frozenset(_PROCESS.ask([source]))

    def render(self, values: Mapping[str, Any], today: str | None = None) -> str:
        """The text, rendered with `values`, which are plain data."""
        return str(_PROCESS.ask([self._source, values, today]))
