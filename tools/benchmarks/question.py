"""What a benchmark's part of the page is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One line of a table: which record it shows."""

    label: str
    case: str
    """The record's `case`, to the letter."""
    where: Mapping[str, object] = field(default_factory=dict)
    """Figures that the record must have besides, where one case was measured in several ways."""


@dataclass(frozen=True)
class Column:
    """One column of a table: which figure of each record it shows."""

    title: str
    figure: str
    digits: int = 0
    scale: float = 1.0
    """What the figure is multiplied by: 100 for a share in per cent."""
    spread: bool = False
    """Show lowest and highest of repeated measurements beside the median."""
    charted: bool = False
    of: Mapping[str, object] = field(default_factory=dict)
    """Figures that select the column's record, in addition to the row's: for example a server. A row may lack it."""


@dataclass(frozen=True)
class Question:
    """One question, its table and its chart."""

    name: str
    """Names the chart's file."""
    title: str
    about: str
    """What was measured, in a paragraph. Holds no figure of a record."""
    file: str
    """Below benchmarks/results."""
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    command: str
    """What measures it again."""
    axis: str = ""
    """Title of the chart's axis, with its unit; empty: there is no chart."""
    peer: str = ""
    """The version and the options of what Ballast is compared with."""
    shows_servers: bool = False
    """List the command lines of both engines, as the records hold them."""


@dataclass(frozen=True)
class Page:
    """A page of documentation, made of questions."""

    path: Path
    """Below the repository's root."""
    introduction: str
    """Title and text before the first question, in Markdown."""
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Highlight:
    """A figure of a question that the README shows too."""

    label: str
    question: Question
    row: int
    ours: Column
    """Its title is the unit."""
    theirs: Column | None = None
    peer: str = "llama-server"
