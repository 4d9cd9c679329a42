"""The parts of a benchmark's section on a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One line of a table, and the record that it shows."""

    label: str
    case: str
    """The record's exact `case`. A column may replace a `*` in it."""
    where: Mapping[str, object] = field(default_factory=dict)
    """Further figures that the record must have, for a case that was measured in several ways."""


@dataclass(frozen=True)
class Column:
    """One column of a table, and the figure that it shows of each record."""

    title: str
    figure: str
    digits: int = 0
    scale: float = 1.0
    """Factor of the figure: 100 shows a share as a percentage."""
    spread: bool = False
    """Show the lowest and highest of repeated measurements in addition to the median."""
    charted: bool = False
    of: Mapping[str, object] = field(default_factory=dict)
    """Figures that select the column's record, in addition to the row's: for example a server. A row may lack it."""
    case: str = ""
    """What replaces `*` in the row's case. A row may lack this record too."""


@dataclass(frozen=True)
class Question:
    """One question with its table and its chart."""

    name: str
    """Name of the chart's file."""
    title: str
    about: str
    """One paragraph about the measurement. It contains no figure of a record."""
    file: str
    """File below benchmarks/results."""
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    command: str
    """Command that repeats the measurement."""
    axis: str = ""
    """Title of the chart's axis, with its unit. Empty: there is no chart."""
    peer: str = ""
    """Version and options of the program that Ballast is compared with."""
    shows_servers: bool = False
    """List the command lines of both engines from the records."""


@dataclass(frozen=True)
class Page:
    """A documentation page made of questions."""

    path: Path
    """Path below the repository's root."""
    introduction: str
    """Title and text before the first question, in Markdown."""
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Highlight:
    """A figure of a question that the README also shows."""

    label: str
    question: Question
    row: int
    ours: Column
    """Column whose title is the unit."""
    theirs: Column | None = None
    peer: str = "llama-server"
