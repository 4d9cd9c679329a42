"""Helpers for generated pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

NOTE = "<!-- Written by `make docs-reference` from the code. Change that, not this. -->"


def is_file_with(path: Path, text: str) -> bool:
    """Whether the file exists and contains exactly `text`."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _row(head)
    yield "|" + "---|" * len(head)
    yield from map(_row, rows)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def metric_row(family: Any) -> tuple[str, ...]:
    """Name, type, labels and description of a prometheus_client metric family."""
    return f"`{family.name}`", family.type, labels(family), family.documentation


def labels(family: Any) -> str:
    found = {label for sample in family.samples for label in sample.labels}
    return ", ".join(f"`{label}`" for label in sorted(found - {"le"})) or "–"
