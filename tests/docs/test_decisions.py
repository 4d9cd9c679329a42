"""Decision records have one form, are short, and are listed in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
SECTIONS = ["Status", "Context", "Decision", "Consequences"]

MAX_RECORDS = 35
"""If there are more, merge records of one topic."""
MAX_WORDS = 600
"""One page."""

TITLE = re.compile(r"# (\d+)\. (.+)\n")
INDEX_LINE = re.compile(r"^- \[(\d+)\. (.+)\]\((\S+)\)$", re.MULTILINE)


def title(record: Path) -> tuple[str, str]:
    """The number and the words of the first line."""
    found = TITLE.match(record.read_text(encoding="utf-8"))
    assert found is not None, f"{record.name} must begin with a line '# NUMBER. TITLE'"
    return found[1], found[2]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_a_record_has_the_four_sections_and_fits_one_page(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert len(text.split()) <= MAX_WORDS


def test_the_index_lists_every_record_once_by_its_title() -> None:
    listed = INDEX_LINE.findall((FOLDER / "index.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted((*title(record), record.name) for record in RECORDS)


def test_numbers_are_unique_match_the_file_names_and_are_few() -> None:
    numbers = [int(title(record)[0]) for record in RECORDS]
    assert numbers == [int(record.name.partition("-")[0]) for record in RECORDS]
    assert len(numbers) == len(set(numbers))
    assert len(RECORDS) <= MAX_RECORDS
